"""The options of the server, and of the conversation in the terminal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astrai_cli.config.base import (
    MAX_CHOICES,
    MAX_REQUEST_BYTES,
    ApiDialect,
    Remote,
    ToolParserName,
    UserPath,
    default_history_file,
)
from astrai_cli.config.network import NetworkOptions


class ServeConfig(NetworkOptions):
    """The HTTP server."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    served_model_name: str | None = Field(
        None, description="Model id clients see; the model's own when left out."
    )
    max_choices: int = Field(
        8,
        ge=1,
        le=MAX_CHOICES,
        description="Most answers to one prompt that a request may ask for with `n`.",
    )
    chat_template: str = Field(
        "auto",
        description="Chat template: auto (the model's own, or the bundled one of its family), "
        "bundled, or a file.",
    )
    api_dialect: ApiDialect = Field(
        "openai",
        description="Whose clients the OpenAI protocol is for: openai; openrouter: usage on a "
        "stream's last chunk of an answer, `reasoning` beside `reasoning_content`, counts in the "
        "errors of prompts that are too long.",
    )
    tool_parser: ToolParserName = Field(
        "none",
        description="How the model writes tool calls: atem (Muse Glimmer), hermes (Qwen and its "
        "like); none: requests with tools are refused.",
    )
    max_request_bytes: int = Field(
        MAX_REQUEST_BYTES,
        ge=1024,
        le=MAX_REQUEST_BYTES,
        description="Most bytes of a request: of its body, and of the line that carries it to "
        "the worker, with the newline.",
    )
    streaming_preflight_timeout: float | None = Field(
        None,
        gt=0.0,
        le=3600.0,
        description="Most seconds a streamed answer's headers wait for its first token, so that an "
        "error before it has its own status; without end when left out.",
    )
    shutdown_timeout: float = Field(
        30.0, ge=0.0, le=3600.0, description="Seconds that running answers may take after SIGTERM."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log lines to write to stderr."
    )


class ChatConfig(Remote):
    """The conversation in the terminal."""

    system: str | None = Field(None, description="System message the conversation starts with.")
    history_file: UserPath = Field(
        default_factory=default_history_file,
        description="File that remembers the lines typed; $XDG_STATE_HOME/astrai/chat_history "
        "or ~/.local/state/astrai/chat_history when left out.",
    )
    read_timeout: float = Field(
        300.0, gt=0.0, le=86400.0, description="Seconds to wait for a server's next words."
    )
