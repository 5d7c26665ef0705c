"""What a worker process needs to know before it can say hello."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from astrai_cli.config import MAX_REQUEST_BYTES, LimitsConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.logs import LogLevel

# Bytes of a request besides its image in base64.
_BESIDE_AN_IMAGE = 1024


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

    def check_image_fits(self) -> None:
        """Raises InvalidInputError where a request has no room for the largest image."""
        largest = self.limits.max_image_bytes
        needed = 4 * -(-largest // 3) + _BESIDE_AN_IMAGE
        if self.max_request_bytes < needed:
            raise InvalidInputError(
                f"max_request_bytes is {self.max_request_bytes}; for an image of max_image_bytes, "
                f"{largest}, it must be at least {needed}",
                param="max_request_bytes",
            )
