"""The messages of a conversation as Anthropic's protocol has them: blocks of content by role."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from astrai_cli.serving.body import Body, only, only_types, wrap
from astrai_cli.serving.messages import MAX_PARTS


class CacheableBlock(Body):
    """A block that may end what is cached: harmless, as equal beginnings are reused anyway."""

    cache_control: dict[str, Any] | None = None


class TextBlock(CacheableBlock):
    """Text of anybody."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], only([])] = []


class ImageSource(Body):
    """An image in the request itself."""

    type: Literal["base64"]
    media_type: Annotated[str, only("image/jpeg", "image/png")]
    data: str


class ImageBlock(CacheableBlock):
    """An image of the user's. One that is too large is scaled down."""

    type: Literal["image"]
    source: Annotated[ImageSource, only_types("base64")]
    transformations: Annotated[dict[str, Any], only({"oversized_image": "downsize"}, {})] = {}


class ToolUseBlock(CacheableBlock):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[dict[str, Any], only({"type": "direct"})] = {"type": "direct"}


_wrap_text = wrap(str, lambda text: [{"type": "text", "text": text}])
TextContent = Annotated[
    list[Annotated[TextBlock, only_types("text")]], _wrap_text, Field(max_length=MAX_PARTS)
]


class ToolResultBlock(CacheableBlock):
    """What a call came to."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContent = []
    is_error: bool = False


class ThinkingBlock(Body):
    """Reasoning of an earlier answer; what the signature says is checked apart."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Body):
    """Reasoning that only another server can read: accepted, and left out."""

    type: Literal["redacted_thinking"]
    data: str


UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]


class UserMessage(Body):
    """What the user says, and what tools answered."""

    role: Literal["user"]
    content: Annotated[
        list[Annotated[UserBlock, only_types("text", "image", "tool_result")]],
        _wrap_text,
        Field(max_length=MAX_PARTS),
    ]


class AssistantMessage(Body):
    """An earlier answer."""

    role: Literal["assistant"]
    content: Annotated[
        list[
            Annotated[
                AssistantBlock, only_types("text", "thinking", "redacted_thinking", "tool_use")
            ]
        ],
        _wrap_text,
        Field(max_length=MAX_PARTS),
    ]


class SystemMessage(Body):
    """An instruction in the middle of a conversation."""

    role: Literal["system"]
    content: TextContent = []
    clear_at: Annotated[str, only("never")] = "never"


MessageParam = Annotated[
    UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")
]
