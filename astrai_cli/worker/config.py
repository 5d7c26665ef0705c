"""What a worker process needs to know before it can say hello."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from astrai_cli.config import MAX_REQUEST_BYTES, LimitsConfig
from astrai_cli.logs import LogLevel


class WorkerConfig(BaseModel):
    """Sent to the worker as one JSON argument.

    source: an artifact folder, or a GGUF file for a backend that runs it as it is.
    max_request_bytes: of a command's line, with its newline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Path
    backend: str
    limits: LimitsConfig = LimitsConfig()
    max_request_bytes: int = MAX_REQUEST_BYTES
    log_level: LogLevel = "info"
