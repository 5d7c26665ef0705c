"""Every example against a real server, as its reader would run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from muse_fixtures import CHAT
from server_process import ServerProcess

from astrai_cli.config import ServeConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(muse_server: ServerProcess, *command: str) -> str:
    """What an example wrote to stdout."""
    ran = subprocess.run(
        command,
        check=False,
        cwd=EXAMPLES,
        env={**os.environ, "ASTRAI_URL": muse_server.url},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["openai_chat.py"], r"\w+.*\n\[\d+ \+ \d+ tokens\]"),
        (
            ["anthropic_chat.py"],
            r"\[\d+ tokens to read\]\n.*\w+.*\n\[\d+ tokens written: end_turn\]",
        ),
        (["tools.py"], r"\[get_weather \{.*\} -> sunny, 8 degrees in .*\]\nIt is \w+"),
        (["image.py", str(CHAT / "blue.png")], "blue"),
        (["sessions.py"], r"\[0 of \d+ tokens reused\](.|\n)*\[[1-9]\d* of \d+ tokens reused\]"),
        (["langchain_chat.py"], r"\[get_weather \{.*\}\]\nIt is \w+"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_python_example(muse_server: ServerProcess, arguments: list[str], said: str) -> None:
    assert re.search(said, run(muse_server, sys.executable, *arguments))


def test_every_python_example_is_run() -> None:
    marks = test_python_example.pytestmark[0].args[1]
    assert {path.name for path in EXAMPLES.glob("*.py")} == {arguments[0] for arguments, _ in marks}


def test_curl(muse_server: ServerProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    said = run(muse_server, "sh", "curl.sh")
    assert said.count('"object":"chat.completion"') == 1
    assert "data: [DONE]" in said
    for kind in ("message", "text_completion", "response"):
        assert re.search(f'"(type|object)":"{kind}"', said), kind


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("agents/*.json")), ids=lambda path: path.stem)
def test_agents_are_sent_where_the_server_is_by_default(path: Path) -> None:
    text = path.read_text()
    json.loads(text)
    serve = ServeConfig()
    assert re.search(rf'"http://{serve.host}:{serve.port}(/v1)?"', text)


def test_the_table_lists_every_example() -> None:
    table = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.rglob("*.*"):
        if path.suffix in {".py", ".sh", ".json"}:
            assert f"]({path.relative_to(EXAMPLES)})" in table
