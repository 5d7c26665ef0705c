"""The input of a response: items, and the conversation they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.serving.body import UNSUPPORTED, Body, only, only_types, wrap
from astrai_cli.serving.messages import (
    MAX_PARTS,
    CacheablePart,
    ChatMessage,
    check_image_url,
)

MAX_ITEMS = 2**15

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(CacheablePart):
    """Text of a message. annotations, logprobs: of our own answers that come back."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[list[Any], only([])] = []
    logprobs: list[Any] = []


class InputImage(CacheablePart):
    """An image in a message, as a data URL."""

    type: Literal["input_image"]
    image_url: Annotated[str, AfterValidator(check_image_url)]
    detail: Annotated[str, only("auto")] = "auto"


def _as_text(text: str) -> list[dict[str, Any]]:
    return [{"type": "input_text", "text": text}]


_TextPart = Annotated[InputText, only_types("input_text", "output_text")]
_Part = Annotated[
    Annotated[InputText | InputImage, Field(discriminator="type")],
    only_types("input_text", "output_text", "input_image"),
]


class Item(Body):
    """What all items may have when an answer's come back."""

    id: str | None = None
    status: Status | None = None


class MessageItem(Item):
    """Somebody's words. phase: of an answer, which has one here."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[_Part], wrap(str, _as_text), Field(max_length=MAX_PARTS)]
    phase: Literal["commentary", "final_answer"] | None = None

    @model_validator(mode="after")
    def _check_images(self) -> MessageItem:
        if self.role != "user" and any(isinstance(part, InputImage) for part in self.content):
            raise PydanticCustomError(UNSUPPORTED, "images are supported in a user's messages only")
        return self

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, InputText))


class ReasoningText(Body):
    """A part of a reasoning, or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Item):
    """What an answer said to itself."""

    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS)] = []
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS)] = []

    @property
    def text(self) -> str:
        """The reasoning itself, or what there is of it."""
        return "".join(part.text for part in self.content or self.summary)


class CallItem(Item):
    """A call in an answer: arguments are the JSON text of an object."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Item):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[list[_TextPart], wrap(str, _as_text), Field(max_length=MAX_PARTS)]


def _check_reference(item: Any) -> Any:
    """Of all items a reference alone may have neither type nor role."""
    if isinstance(item, dict) and item.get("type") is None and "role" not in item and "id" in item:
        raise PydanticCustomError(
            UNSUPPORTED, "references to items are not supported: nothing is kept"
        )
    return item


def _kind(item: Any) -> Any:
    return (item.get("type") if isinstance(item, dict) else None) or "message"


InputItem = Annotated[
    Annotated[
        Annotated[MessageItem, Tag("message")]
        | Annotated[ReasoningItem, Tag("reasoning")]
        | Annotated[CallItem, Tag("function_call")]
        | Annotated[CallOutputItem, Tag("function_call_output")],
        Discriminator(_kind),
    ],
    only_types("message", "reasoning", "function_call", "function_call_output"),
    BeforeValidator(_check_reference),
]


@dataclass(slots=True)
class _Turn:
    """The items of one answer, which are one message of a conversation."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[CallItem] = field(default_factory=list)

    def goes_on_with(self, item: MessageItem | ReasoningItem | CallItem) -> bool:
        """Whether an item is of this answer; a message without an id begins one of its own."""
        begins = isinstance(item, MessageItem) and item.id is None
        return not (begins and (self.content or self.calls))

    def add(self, item: MessageItem | ReasoningItem | CallItem) -> None:
        match item:
            case MessageItem():
                self.content.append(item.text)
            case ReasoningItem():
                self.reasoning.append(item.text)
            case CallItem():
                self.calls.append(item)

    def message(self) -> dict[str, Any]:
        calls = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.calls
        ]
        return {
            "role": "assistant",
            "content": "".join(self.content),
            "reasoning_content": "".join(self.reasoning) or None,
            "tool_calls": calls,
        }


def chat_messages(instructions: str | None, items: Iterable[InputItem]) -> list[ChatMessage]:
    """The conversation that items make, with the instructions in front."""
    messages: list[dict[str, Any] | _Turn] = []
    turn: _Turn | None = None
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item:
            case MessageItem(role="assistant") | ReasoningItem() | CallItem():
                if turn is None or not turn.goes_on_with(item):
                    turn = _Turn()
                    messages.append(turn)
                turn.add(item)
            case _:
                turn = None
                messages.append(_message(item))
    return [
        ChatMessage.model_validate(each.message() if isinstance(each, _Turn) else each)
        for each in messages
    ]


def _message(item: MessageItem | CallOutputItem) -> dict[str, Any]:
    if isinstance(item, CallOutputItem):
        text = "".join(part.text for part in item.output)
        return {"role": "tool", "tool_call_id": item.call_id, "content": text}
    return {"role": item.role, "content": [_part(part) for part in item.content]}


def _part(part: InputText | InputImage) -> dict[str, Any]:
    if isinstance(part, InputImage):
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    return {"type": "text", "text": part.text}
