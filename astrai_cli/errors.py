"""Every error astrai raises on purpose, with the exit code and HTTP status it maps to.

The command line (`cli.main`) and the server (`serving.errors`) each translate
these in one place; nothing else catches them to print them.
"""

from __future__ import annotations

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


class ContextOverflowError(InvalidInputError):
    """A prompt, with what it asks to generate, is longer than the context."""

    code = "context_length_exceeded"


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
    """The queue is full; try again later."""

    status = 429
    code = "overloaded"


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
