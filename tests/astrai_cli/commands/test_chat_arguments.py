"""What `astrai chat` takes its arguments for."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import astrai
from scripted_server import END, scripted_server


@pytest.mark.parametrize(
    ("arguments", "piped", "model", "question"),
    [
        (["Say hi."], "", "scripted", "Say hi."),
        (["scripted"], "Say hi.\n", "scripted", "Say hi."),
        (["other", "Say hi."], "", "other", "Say hi."),
        ([], "Say hi.", "scripted", "Say hi."),
    ],
)
def test_a_lone_argument_is_the_question_unless_the_server_has_a_model_so_called(
    arguments: list[str], piped: str, model: str, question: str, tmp_path: Path
) -> None:
    with scripted_server(lambda body: ["hi", END]) as server:
        done = astrai("chat", "--url", server.url, *arguments, cwd=tmp_path, question=piped)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")
        assert server.bodies[0]["model"] == model
        assert server.bodies[0]["messages"] == [{"role": "user", "content": question}]


def test_a_question_to_nobody_tells_that_nobody_listens(tmp_path: Path) -> None:
    done = astrai("chat", "--url", "http://127.0.0.1:9", "Say hi.", cwd=tmp_path)
    assert done.returncode == 6
    assert "refused" in done.stderr


@pytest.mark.parametrize(
    ("question", "piped", "code"),
    [("Name three seas.", "", 2), ("Name three seas.", "Well?", 3), ("why " * 100, "Well?", 3)],
)
def test_a_question_in_the_place_of_the_model_is_told_so(
    question: str, piped: str, code: int, tmp_path: Path
) -> None:
    done = astrai("chat", question, cwd=tmp_path, question=piped)
    assert done.returncode == code
    assert "MODEL" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused(question: str, tmp_path: Path) -> None:
    done = astrai("chat", "smollm2-135m", question, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "astrai: the question is empty\n")
