"""The config model: the one definition of every option, with its default, bounds and help.

An option's name is the same everywhere: `max_context` here and in `astrai.toml`,
`ASTRAI_MAX_CONTEXT` in the environment, `--max-context` on the command line.
A name that stands in two groups is one option: both inherit its one definition.
"""

from __future__ import annotations

from pydantic import Field

from astrai_cli.config.base import (
    INT32_MAX,
    MAX_CHOICES,
    MAX_IMAGE_BYTES,
    MAX_REQUEST_BYTES,
    ApiDialect,
    Group,
    ToolParserName,
    UserPath,
    default_cache_dir,
)
from astrai_cli.config.bench import BenchConfig, LoadConfig
from astrai_cli.config.running import ExportConfig, LimitsConfig, ModelConfig, SamplingConfig
from astrai_cli.config.serving import ChatConfig, ServeConfig

__all__ = [
    "INT32_MAX",
    "MAX_CHOICES",
    "MAX_IMAGE_BYTES",
    "MAX_REQUEST_BYTES",
    "ApiDialect",
    "BenchConfig",
    "ChatConfig",
    "Config",
    "ExportConfig",
    "Group",
    "LimitsConfig",
    "LoadConfig",
    "ModelConfig",
    "SamplingConfig",
    "ServeConfig",
    "ToolParserName",
    "UserPath",
    "default_cache_dir",
]


class Config(Group):
    """All groups together."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    export: ExportConfig = Field(default_factory=ExportConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    chat: ChatConfig = Field(default_factory=ChatConfig)
    bench: BenchConfig = Field(default_factory=BenchConfig)
    load: LoadConfig = Field(default_factory=LoadConfig)
