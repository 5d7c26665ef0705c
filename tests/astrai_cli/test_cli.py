"""The command line from outside: help, errors, exit codes, configuration, completion."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import ASTRAI, astrai, environment
from parrot import SAYING
from tiny_models import tiny_gguf

from astrai_cli import cli
from astrai_cli.commands.config import reference
from astrai_cli.options import all_options

COMMANDS = ("chat", "serve", "pull", "export", "build", "bench", "inspect", "config", "bench serve")
HEAVY = ("torch", "tokenizers", "gguf", "starlette", "uvicorn", "prompt_toolkit", "httpx", "numpy")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, tmp_path: Path) -> None:
    done = astrai(*command.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"astrai {command}" in done.stdout.replace("ASTRAI_PORT=9000 ", "").split("Example:")[1]


def test_help_lists_commands_and_exit_codes_and_imports_little(tmp_path: Path) -> None:
    program = (
        "import sys; from astrai_cli.cli import main; sys.argv = ['astrai', '--help']\n"
        "try: main()\n"
        f"except SystemExit: print(sorted(set({HEAVY!r}) & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("[]\n")
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    assert "130 interrupted" in " ".join(done.stdout.split())


def test_without_a_command_the_help_is_shown(tmp_path: Path) -> None:
    done = astrai(cwd=tmp_path)
    assert done.returncode == 2
    assert "Commands" in done.stdout + done.stderr


def test_version(tmp_path: Path) -> None:
    assert astrai("--version", cwd=tmp_path).stdout.startswith("astrai ")


def truncated(folder: Path) -> Path:
    whole = tiny_gguf(folder).read_bytes()
    path = folder / "truncated.gguf"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def not_a_gguf(folder: Path) -> Path:
    path = folder / "notes.gguf"
    path.write_text("These are notes.\n")
    return path


def foreign(folder: Path) -> Path:
    return tiny_gguf(folder, architecture="mamba")


def missing(folder: Path) -> Path:
    return folder / "missing.gguf"


BAD_MODELS = [
    *itertools.product(["inspect", "export"], [missing, not_a_gguf, foreign, truncated]),
    *itertools.product(["chat", "serve", "bench"], [missing, truncated]),
]


@pytest.mark.parametrize(("command", "bad_model"), BAD_MODELS)
def test_a_bad_model_is_one_line_that_names_it(
    command: str, bad_model: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = bad_model(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    extra: list[str | Path] = {
        "export": ["-o", work / "artifact"],
        "chat": ["question", "--backend", "eager"],
        "serve": ["--backend", "eager", "--port", "0"],
        "bench": ["--backend", "eager"],
        "inspect": [],
    }[command]

    done = astrai(command, path, *extra, cwd=work, variables={"ASTRAI_CACHE_DIR": str(work)})

    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    # Export tells its stages on lines of their own; the last line is the error.
    *stages, error = done.stderr.splitlines()
    assert error.startswith("astrai: ")
    assert path.name in error
    assert len(stages) <= 1
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "--kv-dtype", "best"], "--kv-dtype: 'best' is not one of float16, float32"),
        (
            ["serve", "m", "--port", "70000"],
            "--port: '70000' is not a whole number from 0 to 65535",
        ),
        (["chat", "--url", "here"], "--url: 'here' is not an http or https URL"),
        (["chat", "m", "x", "--backend", "abacus"], "no backend called 'abacus'; there are: "),
        (["config", "--config", "no.toml"], "no.toml: cannot be read: No such file or directory"),
        (["export"], "export takes one of MODEL, --gguf FILE and --hf FOLDER"),
        (["serve"], "Missing argument 'MODEL'"),
        (["serve", "m", "--prot", "1"], "No such option: --prot"),
        (["sevre"], "No such command 'sevre'"),
        (["pull", "gpt-9"], "no model called 'gpt-9'"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = astrai(*arguments, cwd=tmp_path, question="question")
    assert done.returncode in (2, 4, 5)
    assert message in done.stderr
    assert done.stderr.startswith("astrai: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_named(parrot: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = astrai("serve", parrot, "--backend", "eager", "--port", str(port), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"astrai: cannot listen on 127.0.0.1 port {port}: address already in use; "
        "choose another with --port (0 picks a free one)\n"
    )


def test_a_prompt_longer_than_the_context_is_refused(parrot: Path, tmp_path: Path) -> None:
    done = astrai(
        "chat", parrot, "why " * 100, "--backend", "eager", "--max-context", "32", cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "32" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_piped_question_prints_just_the_answer(parrot: Path, tmp_path: Path) -> None:
    done = astrai(
        "chat", parrot, "--backend", "eager", "--temperature", "0", cwd=tmp_path, question="Well?\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, SAYING + "\n", "")


def test_a_question_may_be_an_argument(parrot: Path, tmp_path: Path) -> None:
    variables = {"ASTRAI_BACKEND": "eager", "ASTRAI_TOP_K": "1", "ASTRAI_MAX_TOKENS": "1"}
    done = astrai("chat", parrot, "Well?", cwd=tmp_path, variables=variables)
    assert done.stdout == SAYING[0] + "\n"


def test_a_real_model_answers(smollm2_gguf: Path, tmp_path: Path) -> None:
    arguments = ["--backend", "eager", "--temperature", "0", "--max-tokens", "8"]
    done = astrai("chat", smollm2_gguf, "What is the capital of France?", *arguments, cwd=tmp_path)
    assert "Paris" in done.stdout


def test_ctrl_c_ends_a_plain_answer(babbler: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [ASTRAI, "chat", babbler, "go on", "--backend", "eager", "--max-context", "16384"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, b"")


def test_serve_answers_chat_until_it_is_told_to_stop(parrot: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [ASTRAI, "serve", parrot, "--backend", "eager", "--port", "0", "--log-level", "error"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith(f"serving {parrot} at http://127.0.0.1:")
        url, note = line.split(" at ")[1].split(maxsplit=1)
        assert note == "(chat page; API below /v1)\n"
        done = astrai("chat", "--url", url, "--top-k", "1", cwd=tmp_path, question="Well?")
        assert (done.returncode, done.stdout, done.stderr) == (0, SAYING + "\n", "")
        done = astrai("chat", "nobody", "Well?", "--url", url, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (6, "")
        assert "404" in done.stderr
        assert "nobody" in done.stderr
    finally:
        process.terminate()
    assert process.wait() == 0
    process.stdout.close()


def test_no_question_is_an_error(parrot: Path, tmp_path: Path) -> None:
    done = astrai("chat", parrot, "--backend", "eager", cwd=tmp_path, question=" \n")
    assert done.returncode == 2
    assert done.stderr.startswith("astrai: stdin: no question to answer; ")


def test_config_tells_values_and_where_they_came_from(tmp_path: Path) -> None:
    (tmp_path / "astrai.toml").write_text("[limits]\nthreads = 3\nmax_context = 100\n")
    done = astrai(
        "config",
        "--json",
        "--port",
        "1",
        cwd=tmp_path,
        variables={"ASTRAI_THREADS": "", "ASTRAI_MAX_CONTEXT": "200", "ASTRAI_API_KEY": "hunter2"},
    )
    told = json.loads(done.stdout)
    assert told.keys() == all_options().keys()
    found = {name: (told[name]["value"], told[name]["source"]) for name in told}
    assert found["threads"] == (3, "astrai.toml: limits.threads")
    assert found["max_context"] == (200, "ASTRAI_MAX_CONTEXT")
    assert found["port"] == (1, "--port")
    assert found["host"] == ("127.0.0.1", "default")
    assert "hunter2" not in done.stdout
    table = astrai("config", cwd=tmp_path).stdout
    assert "limits.max_context" in table


def test_the_reference_of_options_is_current() -> None:
    """Mend it with `astrai config --markdown > docs/configuration.md`."""
    assert (ROOT / "docs" / "configuration.md").read_text() == reference()


def test_inspect_describes_a_model(parrot: Path, tmp_path: Path) -> None:
    told = json.loads(astrai("inspect", parrot, "--json", cwd=tmp_path).stdout)
    assert told["kind"] == "gguf"
    shown = astrai("inspect", parrot, cwd=tmp_path).stdout
    assert told["files"][0]["sha256"] in shown
    assert "<|im_end|>" in shown


def test_bench_measures_speed_and_quality(parrot: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("What is the capital of France? " * 20)
    arguments = ["bench", parrot, "--backend", "eager", "--repeats", "2", "--warmup", "0"]
    arguments += ["--prompt-lengths", "8,16", "--batch-sizes", "2", "--decode-tokens", "8"]
    arguments += ["--quality", text, "--quality-tokens", "50", "--quality-window", "32"]
    done = astrai(*arguments, "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    measured = [(each["kind"], each["size"], len(each["runs"])) for each in report["speed"]]
    assert measured == [("prefill", 8, 2), ("prefill", 16, 2), ("decode", 2, 2)]
    assert all(each["tokens_per_second"] > 0 for each in report["speed"])
    assert report["quality"]["tokens"] == 50
    assert report["quality"]["top1_agreement"] == 1.0
    assert abs(report["quality"]["kl"]) < 1e-6
    shown = astrai(*arguments, cwd=tmp_path).stdout
    assert "decode 2" in shown
    assert "top-1 agreement" in shown


def test_bench_refuses_drafts_that_cannot_be_before_it_times_anything(
    parrot: Path, tmp_path: Path
) -> None:
    arguments = ["bench", parrot, "--backend", "eager", "--speculate", "ngram", "--dflash"]
    done = astrai(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert "guesses have one source" in error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("astrai ser", "serve"),
        ("astrai serve --kv-d", "--kv-dtype"),
        ("astrai bench --kv-dtype float1", "float16"),
        ("astrai bench serve --request-r", "--request-rate"),
    ],
)
def test_shells_can_complete(words: str, expected: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [ASTRAI],
        cwd=tmp_path,
        env=environment(
            {
                "_ASTRAI_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            }
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected in done.stdout.split()


def test_a_reader_that_leaves_is_no_trouble(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [ASTRAI, "config"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def fail() -> None:
    raise RuntimeError("first\nsecond")


def test_the_unexpected_is_one_line_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda standalone_mode: fail())
    monkeypatch.delenv("ASTRAI_DEBUG", raising=False)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    assert capsys.readouterr().err == (
        "astrai: RuntimeError: first second (unexpected; ASTRAI_DEBUG=1 shows the traceback)\n"
    )
    monkeypatch.setenv("ASTRAI_DEBUG", "1")
    with pytest.raises(RuntimeError, match="first"):
        cli.main()
