"""The JSON Schemas of a request's tools: checked and compiled before, applied after generation."""

from astrai_cli.serving.tool_schemas.tools import (
    InvalidToolSchemaError,
    Tool,
    ToolSet,
    prompt_alias,
)

__all__ = ["InvalidToolSchemaError", "Tool", "ToolSet", "prompt_alias"]
