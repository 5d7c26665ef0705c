"""Every error astrai raises on purpose, with the exit code and HTTP status it maps to.

The command line (`cli.main`) and the server (`serving.errors`) each translate
these in one place; nothing else catches them to print them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class AstraiError(Exception):
    """Base of astrai's own errors; the message is one line that names the thing and the bound."""

    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"


class InvalidInputError(AstraiError):
    """The caller gave something well formed that cannot be used as asked."""

    exit_code = 2
    status = 400
    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLargeError(AstraiError):
    """A request has more bytes than the server takes."""

    exit_code = 2
    status = 413
    code = "request_too_large"


@dataclass(frozen=True, slots=True)
class ContextNeed:
    """What a request needs of the context, in tokens. answer: so many are kept free for it."""

    prompt: int
    answer: int
    context: int

    @property
    def max_prompt(self) -> int:
        """The longest prompt beside such an answer."""
        return max(self.context - self.answer, 0)


class ContextOverflowError(InvalidInputError):
    """A prompt, with what it asks to generate, is longer than the context.

    need: in numbers, where the error is of one request.
    """

    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None = None, need: ContextNeed | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.need = need

    @classmethod
    def check(cls, need: ContextNeed, *, param: str, note: str = "") -> None:
        """Raises it where the context is too small. note: about the prompt, for the message.

        Clients find out from "prompt is too long: A tokens > B maximum" by how much to shorten
        a prompt, so an answer that leaves room for none is told in other words.
        """
        if need.prompt <= need.context - need.answer:
            return
        if need.answer and not need.max_prompt:
            message = (
                f"max_tokens is {need.answer}; the context of {need.context} tokens "
                "must hold the prompt too"
            )
            param = "max_tokens"
        else:
            message = (
                f"the prompt is too long: {need.prompt} tokens > {need.max_prompt} maximum{note}; "
                f"the context of {need.context} must hold it and {need.answer} of the answer"
            )
        raise cls(message, param=param, need=need)


class ModelFileError(AstraiError):
    """A model file is missing, foreign, truncated or malformed."""

    exit_code = 3
    code = "model_file_error"


class ArtifactError(AstraiError):
    """An exported artifact is missing, incomplete, altered or of another format version."""

    exit_code = 3
    code = "artifact_error"


class BackendUnavailableError(AstraiError):
    """The backend cannot run here; the message says what to install or build."""

    exit_code = 4
    code = "backend_unavailable"


class DownloadError(AstraiError):
    """A model could not be fetched or is not what was expected."""

    exit_code = 5
    code = "download_error"


class ServerError(AstraiError):
    """A server that `chat --url` talks to refused, failed or could not be reached."""

    exit_code = 6
    code = "server_error"


class OverloadedError(AstraiError):
    """There is no room for the request.

    Trying again in about retry_after seconds may help; where waiting cannot, that is None.
    """

    status = 429
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceededError(AstraiError):
    """The request took longer than it was allowed to."""

    status = 504
    code = "deadline_exceeded"


class SessionNotFoundError(AstraiError):
    """There is no session with that id."""

    exit_code = 2
    status = 404
    code = "session_not_found"


class SessionBusyError(AstraiError):
    """A session with requests in flight cannot be reset or deleted."""

    status = 409
    code = "session_busy"


class EngineUnavailableError(AstraiError):
    """The engine is starting, stopping or has died."""

    status = 503
    code = "engine_unavailable"


class ExecutionError(AstraiError):
    """A step failed inside an executor; its requests end with this error."""

    code = "execution_error"


class RequestCancelledError(AstraiError):
    """The request was cancelled by its client or by shutdown."""

    status = 499
    code = "cancelled"


def install_command(extra: str) -> str:
    """What to type for the packages of an extra; from a checkout, as astrai is on no index."""
    return f"pip install '.[{extra}]' in astrai's checkout"


def error_of(
    code: str,
    message: str,
    param: str | None = None,
    retry_after: float | None = None,
    need: ContextNeed | None = None,
) -> AstraiError:
    """An AstraiError of the class that has this code; AstraiError itself for unknown codes."""
    kind = _classes_by_code().get(code, AstraiError)
    if issubclass(kind, ContextOverflowError):
        return kind(message, param=param, need=need)
    if issubclass(kind, InvalidInputError):
        return kind(message, param=param)
    if issubclass(kind, OverloadedError):
        return kind(message, retry_after=retry_after)
    return kind(message)


def _classes_by_code() -> dict[str, type[AstraiError]]:
    classes: dict[str, type[AstraiError]] = {}
    pending: list[type[AstraiError]] = [AstraiError]
    while pending:
        kind = pending.pop()
        classes.setdefault(kind.code, kind)
        pending.extend(kind.__subclasses__())
    return classes
