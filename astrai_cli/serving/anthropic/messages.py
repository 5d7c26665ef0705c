"""From the blocks of Anthropic's protocol to the messages that all chat protocols come down to.

Texts side by side are joined by a line end, those of one answer by nothing, as they were
cut apart only by thinking in between. Turns of one role in a row become one turn. Every
result of a call becomes a message of its own, in its place among the user's blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.anthropic.content import (
    AssistantMessage,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
    UserMessage,
)
from astrai_cli.serving.anthropic.requests import ConversationBody
from astrai_cli.serving.anthropic.signatures import thinking_of
from astrai_cli.serving.body import UNSUPPORTED
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.messages import (
    CalledFunction,
    ChatMessage,
    ImagePart,
    ImageUrl,
    MessageToolCall,
    Part,
    TextPart,
)
from astrai_cli.serving.transport.sse import json_text

ERROR_MARK = "Error: "
"""Before the result of a call that failed: templates know no other way to say so."""

_Block = TypeVar("_Block")


def chat_messages(body: ConversationBody) -> list[ChatMessage]:
    """The conversation of a request.

    Raises RequestError where its last turn is the assistant's, InvalidInputError for a
    result of no call and for thinking that was changed.
    """
    if body.messages[-1].role == "assistant":
        raise RequestError(
            "the last message is the assistant's; going on with an answer is not supported",
            status=400,
            code=UNSUPPORTED,
            param="messages",
        )
    messages = list(_system(body.system)) + _Translation(body).messages
    return _clear_thinking(_merge_turns(messages), body.n_thinking_turns)


class _Translation:
    """The turns of a conversation, one after the other."""

    def __init__(self, body: ConversationBody) -> None:
        self.messages: list[ChatMessage] = []
        self._called: set[str] = set()
        for index, message in enumerate(body.messages):
            where = f"messages.{index}"
            match message:
                case UserMessage():
                    self._add_user(message, where)
                case AssistantMessage():
                    self._add_assistant(message, where)
                case _:
                    self.messages += _system(message.content)

    def _add_user(self, message: UserMessage, where: str) -> None:
        blocks = list(enumerate(message.content))
        runs = groupby(blocks, lambda pair: isinstance(pair[1], ToolResultBlock))
        for are_results, run in runs:
            if not are_results:
                content = _joined_parts([_part(block) for _, block in run])
                self.messages.append(ChatMessage(role="user", content=content))
                continue
            for place, block in run:
                assert isinstance(block, ToolResultBlock)
                self._add_result(block, f"{where}.content.{place}")

    def _add_result(self, block: ToolResultBlock, where: str) -> None:
        if block.tool_use_id not in self._called:
            raise InvalidInputError(
                f"{where} is the result of no call before it", param=f"{where}.tool_use_id"
            )
        text = _joined(block.content)
        content = _text(ERROR_MARK + text if block.is_error else text)
        self.messages.append(
            ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=content)
        )

    def _add_assistant(self, message: AssistantMessage, where: str) -> None:
        thoughts = [
            _thinking(block, f"{where}.content.{place}")
            for place, block in enumerate(message.content)
            if isinstance(block, ThinkingBlock)
        ]
        calls = [_call(block) for block in _of(message.content, ToolUseBlock)]
        self._called |= {call.id for call in calls}
        self.messages.append(
            ChatMessage(
                role="assistant",
                content=_text("".join(block.text for block in _of(message.content, TextBlock))),
                reasoning_content="".join(thoughts) or None,
                tool_calls=calls,
            )
        )


def _merge_turns(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Turns of one role in a row as one; an answer with calls is its turn's last."""
    turns: list[list[ChatMessage]] = []
    for message in messages:
        if turns and _goes_on(turns[-1][-1], message):
            turns[-1].append(message)
        else:
            turns.append([message])
    return [turn[0] if len(turn) == 1 else _merged(turn) for turn in turns]


def _goes_on(before: ChatMessage, message: ChatMessage) -> bool:
    of_one = before.role == message.role and message.role in {"user", "assistant"}
    return of_one and not before.tool_calls


def _merged(turn: Sequence[ChatMessage]) -> ChatMessage:
    thoughts = [each.reasoning_content for each in turn if each.reasoning_content]
    return ChatMessage(
        role=turn[0].role,
        content=_joined_parts([part for each in turn for part in each.content]),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=turn[-1].tool_calls,
    )


def _system(blocks: Sequence[TextBlock]) -> Iterator[ChatMessage]:
    if text := _joined(blocks):
        yield ChatMessage(role="system", content=_text(text))


def _joined_parts(parts: Sequence[Part]) -> list[Part]:
    """The parts, where texts side by side are one."""
    joined: list[Part] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, TextPart)):
        if is_text:
            joined += _text("\n".join(part.text for part in run if isinstance(part, TextPart)))
        else:
            joined += run
    return joined


def _joined(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)


def _text(text: str) -> list[Part]:
    return [TextPart(type="text", text=text)] if text else []


def _part(block: UserBlock) -> Part:
    if isinstance(block, ImageBlock):
        return _image(block)
    assert isinstance(block, TextBlock)
    return TextPart(type="text", text=block.text)


def _image(block: ImageBlock) -> ImagePart:
    url = f"data:{block.source.media_type};base64,{block.source.data}"
    return ImagePart(type="image_url", image_url=ImageUrl(url=url))


def _thinking(block: ThinkingBlock, where: str) -> str:
    try:
        return thinking_of(block.thinking, block.signature)
    except ValueError as error:
        raise InvalidInputError(f"{where}: {error}", param=f"{where}.signature") from error


def _call(block: ToolUseBlock) -> MessageToolCall:
    function = CalledFunction(name=block.name, arguments=json_text(block.input))
    return MessageToolCall(id=block.id, function=function)


def _of(blocks: Sequence[object], kind: type[_Block]) -> list[_Block]:
    return [block for block in blocks if isinstance(block, kind)]


def _clear_thinking(messages: Sequence[ChatMessage], n_kept: int | None) -> list[ChatMessage]:
    """Without the thinking of all but the last n_kept turns that have any; None keeps all.

    A turn ends where the user speaks; results of calls do not end it.
    """
    if n_kept is None:
        return list(messages)
    cleared: list[ChatMessage] = []
    n_seen, is_counted = 0, False
    for message in reversed(messages):
        if message.role == "user":
            is_counted = False
        elif message.reasoning_content:
            n_seen += not is_counted
            is_counted = True
        is_old = n_seen > n_kept
        cleared.append(_without_thinking(message) if is_old else message)
    return cleared[::-1]


def _without_thinking(message: ChatMessage) -> ChatMessage:
    return message.model_copy(update={"reasoning_content": None})
