from __future__ import annotations

import logging

import pytest
from starlette.exceptions import HTTPException

from astrai_cli.errors import (
    ContextOverflowError,
    EngineUnavailableError,
    ExecutionError,
    OverloadedError,
)
from astrai_cli.serving.errors import openai_error, problem_of


@pytest.mark.parametrize("error", [ExecutionError("/home/me/model: x"), ValueError("/home/me")])
def test_the_inside_of_the_server_goes_to_the_log_alone(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        problem = problem_of(error)
    assert problem.status == 500
    assert openai_error(problem)["error"]["type"] == "server_error"
    assert "/home/me" not in str(openai_error(problem))
    assert "/home/me" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (ContextOverflowError("m", param="p"), 400, "context_length_exceeded", "invalid_request"),
        (OverloadedError("m"), 429, "overloaded", "rate_limit"),
        (EngineUnavailableError("m"), 503, "engine_unavailable", "server"),
        (HTTPException(404), 404, "not_found", "invalid_request"),
    ],
)
def test_errors_have_a_status_a_code_and_a_type(
    error: Exception, status: int, code: str, kind: str
) -> None:
    problem = problem_of(error)
    body = openai_error(problem)
    assert (problem.status, body["error"]["code"]) == (status, code)
    assert body["error"]["type"] == f"{kind}_error"
    assert ("retry-after" in problem.headers) == (status in {429, 503})
    assert ("detail" in body) == (status == 503)


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (7.0, "7"), (7.01, "8")])
def test_when_to_try_again_is_told_in_whole_seconds(seconds: float, header: str) -> None:
    problem = problem_of(OverloadedError("m", retry_after=seconds))
    assert problem.headers["retry-after"] == header
