"""The help of the commands, as a terminal of 80 columns shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import astrai
from typer.main import get_command

from astrai_cli.cli import app

COMMANDS: dict[str, Any] = vars(get_command(app))["commands"]


def narrow_help(command: str, folder: Path) -> str:
    return astrai(*command.split(), "--help", cwd=folder, variables={"COLUMNS": "80"}).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_of_an_option_is_cut(command: str, tmp_path: Path) -> None:
    shown = narrow_help(command, tmp_path)
    names = [name for each in COMMANDS[command].params for name in each.opts + each.secondary_opts]
    assert {name for name in names if name.startswith("-")} <= {*shown.replace(",", " ").split()}
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_options_stand_with_the_group_their_command_asks_for(tmp_path: Path) -> None:
    shown = narrow_help("bench serve", tmp_path)
    assert "Load options:\n  --api-key" in shown
    assert "Chat options" not in shown


def test_models_are_described_alike_as_far_as_a_command_takes_them(tmp_path: Path) -> None:
    said = {name: " ".join(narrow_help(name, tmp_path).split()) for name in COMMANDS}
    for command in ("pull", "export", "inspect", "bench", "serve", "chat"):
        assert "An alias, such as smollm2-135m, or hf:ORG/REPO/FILE" in said[command]
    for command in ("export", "inspect", "bench", "serve", "chat"):
        assert "a GGUF file or a Hugging Face folder" in said[command]
    for command in ("inspect", "bench", "serve", "chat"):
        assert "an exported folder" in said[command]
