"""The messages of a conversation as OpenAI's protocol has them."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.serving.body import UNSUPPORTED, Body, only, only_types, wrap

_DATA_URL = re.compile(r"data:(image/(?:jpeg|jpg|png));base64,", re.IGNORECASE)
_MAX_TOOL_CALLS = 128
MAX_MESSAGES = 2**14
MAX_PARTS = 1024


def check_image_url(url: str) -> str:
    if _DATA_URL.match(url) is None:
        raise PydanticCustomError(
            UNSUPPORTED, "only inline JPEG and PNG images are supported: data:image/png;base64,…"
        )
    return url


class CacheBreakpoint(Body):
    """Where OpenAI's reference lets a client end what is cached."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class CacheControl(Body):
    """The same, as Anthropic's and OpenRouter's references have it."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CacheablePart(Body):
    """A part with hints about caching, which are harmless: equal beginnings are reused anyway."""

    prompt_cache_breakpoint: CacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class TextPart(CacheablePart):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """An image as a data URL."""

    url: Annotated[str, AfterValidator(check_image_url)]


class ImagePart(CacheablePart):
    """An image in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def data(self) -> bytes:
        """The compressed image. Raises ValueError where it is not base64."""
        url = self.image_url.url
        try:
            return base64.b64decode(url[url.index(",") + 1 :], validate=True)
        except binascii.Error as error:
            raise ValueError(f"the image is not base64: {error}") from None


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
Content = Annotated[
    list[Annotated[Part, only_types("text", "image_url")]],
    wrap(str, lambda text: [{"type": "text", "text": text}]),
    Field(max_length=MAX_PARTS),
]


class CalledFunction(Body):
    """What was called: arguments are the JSON text of an object."""

    name: str
    arguments: str


class MessageToolCall(Body):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    # Where the call stood in a stream; clients that add deltas up keep it.
    index: int | None = None


def _check_role(role: Any) -> Any:
    if role == "function":
        raise PydanticCustomError(UNSUPPORTED, "functions are not supported; tools are")
    return role


def _describe_reasoning(schema: dict[str, Any]) -> None:
    """Of the field's other name, which `ChatMessage` takes."""
    schema["properties"]["reasoning"] = schema["properties"]["reasoning_content"]


class ChatMessage(Body):
    """One turn of a conversation. `name` goes to the template, which may show it."""

    model_config = ConfigDict(json_schema_extra=_describe_reasoning)

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_check_role)
    ]
    content: Content = []
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[
        list[Annotated[MessageToolCall, only_types("function")]], Field(max_length=_MAX_TOOL_CALLS)
    ] = []
    reasoning_content: str | None = None
    # A field of our own answers, so that a client may send one back as it came.
    annotations: Annotated[list[Any], only([])] = []

    @model_validator(mode="before")
    @classmethod
    def _take_reasoning(cls, value: Any) -> Any:
        """`reasoning` is OpenRouter's name of the same."""
        if not isinstance(value, dict) or value.get("reasoning") is None:
            return value
        other = {key: each for key, each in value.items() if key != "reasoning"}
        again = other.get("reasoning_content")
        if again is not None and again != value["reasoning"]:
            raise PydanticCustomError(
                "invalid_value", "reasoning and reasoning_content contradict each other"
            )
        return {**other, "reasoning_content": value["reasoning"]}

    @model_validator(mode="after")
    def _check_fields(self) -> ChatMessage:
        is_assistant = self.role == "assistant"
        says_otherwise = is_assistant and (self.tool_calls or self.reasoning_content)
        if "content" not in self.model_fields_set and not says_otherwise:
            raise PydanticCustomError("incomplete", "content is required")
        if not is_assistant and (self.tool_calls or self.reasoning_content):
            raise PydanticCustomError(
                "invalid_value", "only an assistant's message has tool_calls or reasoning_content"
            )
        if self.role != "user" and self.images:
            raise PydanticCustomError(UNSUPPORTED, "images are supported in a user's messages only")
        return self

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> list[ImagePart]:
        return [part for part in self.content if isinstance(part, ImagePart)]
