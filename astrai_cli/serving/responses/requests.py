"""The requests for responses: what is honoured, what is harmless, what is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.engine.sampling.logprobs import MAX_TOP_LOGPROBS
from astrai_cli.serving.body import Body, only, only_types, wrap
from astrai_cli.serving.generation import GenerationBody, TokenLimit
from astrai_cli.serving.openai.requests import AccountBody
from astrai_cli.serving.reasoning import Effort
from astrai_cli.serving.responses.items import MAX_ITEMS, InputItem
from astrai_cli.serving.tool_requests import MAX_TOOLS

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


class FunctionTool(Body):
    """A function that the model may call; its parameters' schema is checked apart."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = True

    def declaration(self) -> dict[str, Any]:
        """The tool as chat completions declare it."""
        return {
            "type": "function",
            "function": self.model_dump(exclude={"type"}, exclude_none=True),
        }


class ReasoningConfig(Body):
    """`reasoning` of a request. A summary is not made; the reasoning itself is shown."""

    effort: Effort | None = None
    summary: Annotated[str, only("auto")] | None = None
    generate_summary: Annotated[str, only("auto")] | None = None
    context: Annotated[str, only("auto")] | None = None
    mode: Annotated[str, only("standard")] | None = None


class TextConfig(Body):
    """`text` of a request."""

    format: Annotated[dict[str, Any], only({"type": "text"})] = {"type": "text"}
    verbosity: Annotated[str, only("medium")] = "medium"


class ResponseStreamOptions(Body):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool, only(False)] = False


class ResponseRequest(GenerationBody, AccountBody):
    """The body of `POST /v1/responses`."""

    input: Annotated[
        list[InputItem],
        wrap(str, lambda text: [{"role": "user", "content": text}]),
        Field(min_length=1, max_length=MAX_ITEMS),
    ]
    instructions: str | None = None
    max_output_tokens: TokenLimit | None = None
    reasoning: ReasoningConfig = ReasoningConfig()
    tools: Annotated[
        list[Annotated[FunctionTool, only_types("function")]], Field(max_length=MAX_TOOLS)
    ] = []
    tool_choice: Annotated[Any, only("auto", "none")] = "auto"
    include: list[Annotated[str, only(LOGPROBS, ENCRYPTED_REASONING)]] = []
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)

    # Accepted only where they ask for what happens anyway.
    parallel_tool_calls: Annotated[bool, only(True)] = True
    text: TextConfig = TextConfig()
    truncation: Annotated[str, only("disabled")] = "disabled"
    background: Annotated[bool, only(False)] = False
    store: Annotated[bool, only(False)] = False
    stream_options: ResponseStreamOptions | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> ResponseRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("invalid_value", "stream_options needs stream to be true")
        return self

    @property
    def active_tools(self) -> list[dict[str, Any]]:
        """Those the model may call, as chat completions declare them."""
        return [] if self.tool_choice == "none" else [tool.declaration() for tool in self.tools]

    @property
    def n_logprobs(self) -> int | None:
        """How many of the likeliest tokens to tell of each; None: no log probabilities at all."""
        return self.top_logprobs if self.top_logprobs or LOGPROBS in self.include else None
