"""How a family of models converses: messages become a prompt, and its text an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astrai_cli.config import ServeConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.spec import MUSE_GLIMMER
from astrai_cli.models.text import TextModel
from astrai_cli.serving.body import UNSUPPORTED
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.messages import ChatMessage, ImagePart, MessageToolCall, Part
from astrai_cli.serving.parsers import OutputParser, make_parser
from astrai_cli.serving.parsers.muse import HEADER
from astrai_cli.serving.reasoning import Effort
from astrai_cli.serving.templates import ChatTemplate, Message
from astrai_cli.serving.tool_schemas import ToolSet, prompt_alias
from astrai_cli.serving.tool_schemas.json_text import MAX_VALUE_DEPTH, parse_json

THINK = "<think>"
THINKING_SWITCH = "enable_thinking"
"""The variable by which some templates turn the model's thoughts on and off."""

THINK_REACH = 32
"""So many characters of a prompt's end tell whether it ends inside the model's thoughts."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """One model's way. parser: what reads its text, by name.

    qualifies_names: whether prompts show a flat tool name as its own namespace's member.
    header_ids: the tokens that begin and end a message's header, None where none does.
    """

    template: ChatTemplate
    parser: str
    qualifies_names: bool
    header_ids: tuple[int, int] | None = None

    @classmethod
    def of(cls, text: TextModel, serve: ServeConfig) -> ChatFormat:
        """As the server is asked for it. Raises as ChatTemplate and ChatTemplate.of do."""
        is_muse = text.architecture == MUSE_GLIMMER
        parser = "plain" if serve.tool_parser == "none" and not is_muse else serve.tool_parser
        headers = _header_ids(text) if is_muse else None
        return cls(ChatTemplate.of(text, serve.chat_template), parser, is_muse, headers)

    @property
    def writes_special(self) -> bool:
        """Whether the parser must see special tokens in the text."""
        return self.parser != "plain"

    @property
    def takes_effort(self) -> bool:
        """Whether the model can be told how much to reason."""
        return self.template.knows("reasoning_strength")

    def tool_set(self, tools: Sequence[Mapping[str, Any]]) -> ToolSet:
        """The tools of a request, checked.

        Raises RequestError where this server calls none, and what ToolSet raises.
        """
        if not tools:
            return ToolSet()
        if self.parser not in {"atem", "hermes"}:
            raise _unsupported("tools", "this server was started without --tool-parser")
        if not self.template.knows("tools"):
            raise _unsupported("tools", "the model's chat template knows no tools")
        return ToolSet(tools)

    def variables(
        self,
        tools: Sequence[Mapping[str, Any]],
        effort: Effort | None,
        thinks: bool | None = None,
    ) -> dict[str, Any]:
        """What the template takes besides the messages; tools: the checked ones of a request.

        thinks: whether the model is to reason, None leaves it to the template. Raises
        RequestError for an effort that the template knows nothing of, and for a model that
        always reasons where it is not to.
        """
        variables: dict[str, Any] = {}
        if tools:
            variables["tools"] = [self._declaration(tool["function"]) for tool in tools]
        if effort is not None:
            if not self.takes_effort:
                raise _unsupported(
                    "reasoning_effort", "the model's chat template knows no reasoning strength"
                )
            variables["reasoning_strength"] = effort
        if thinks is not None and self.template.knows(THINKING_SWITCH):
            variables[THINKING_SWITCH] = thinks
        elif thinks is False and (self.takes_effort or self.template.knows(THINK)):
            raise _unsupported("thinking", "this model always reasons")
        return variables

    def messages(self, messages: Sequence[ChatMessage]) -> list[Message]:
        """The messages as templates take them.

        Content is a text, or a list of parts where there is an image; a call's arguments
        are an object; a tool's message has the name its call had. Raises
        InvalidInputError for calls that are not JSON and results of no call.
        """
        called: dict[str, str] = {}
        shown: list[Message] = []
        for index, message in enumerate(messages):
            where = f"messages.{index}"
            fields: dict[str, Any] = {"role": message.role, "content": _content(message)}
            if message.tool_calls:
                fields["tool_calls"] = self._calls(message, where)
                called |= {call["id"]: call["function"]["name"] for call in fields["tool_calls"]}
            optional = {
                "reasoning_content": message.reasoning_content,
                "tool_call_id": message.tool_call_id,
                "name": self._name(message, called, where),
            }
            fields |= {key: value for key, value in optional.items() if value is not None}
            shown.append(fields)
        return shown

    def make_parser(self, tools: ToolSet, prompt_end: str) -> OutputParser:
        """What reads one answer. prompt_end: the last of the prompt's text."""
        thinking = prompt_end.rstrip().endswith(THINK)
        return make_parser(self.parser, tools, thinking=thinking)

    def _declaration(self, function: Mapping[str, Any]) -> dict[str, Any]:
        shown = {key: value for key, value in function.items() if key != "strict"}
        return {"type": "function", "function": {**shown, "name": self._shown(shown["name"])}}

    def _calls(self, message: ChatMessage, where: str) -> list[dict[str, Any]]:
        if not self.template.knows("tool_calls"):
            raise _unsupported(where, "the model's chat template knows no tool calls")
        return [self._call(call, where) for call in message.tool_calls]

    def _call(self, call: MessageToolCall, where: str) -> dict[str, Any]:
        arguments = parse_json(call.function.arguments) if call.function.arguments else {}
        if not isinstance(arguments, dict):
            raise InvalidInputError(
                f"the arguments of call {call.id[:80]!r} are not the JSON of an object, "
                f"at most {MAX_VALUE_DEPTH} levels deep",
                param=f"{where}.tool_calls",
            )
        function = {"name": self._shown(call.function.name), "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _name(self, message: ChatMessage, called: Mapping[str, str], where: str) -> str | None:
        if message.role != "tool":
            return message.name
        if (name := called.get(message.tool_call_id or "")) is not None:
            return name
        if message.name is None:
            raise InvalidInputError(
                f"{where} is the result of no call before it", param=f"{where}.tool_call_id"
            )
        return self._shown(message.name)

    def _shown(self, name: str) -> str:
        """A tool's name as prompts show it."""
        return prompt_alias(name) if self.qualifies_names else name


def _header_ids(text: TextModel) -> tuple[int, int] | None:
    begin, end = (text.tokenizer.token_to_id(token) for token in HEADER)
    return None if begin is None or end is None else (begin, end)


def _content(message: ChatMessage) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.text
    return [_part(part) for part in message.content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        # Templates look at the type; the digest tells one conversation from another.
        digest = hashlib.sha256(part.image_url.url.encode()).hexdigest()
        return {"type": "image", "digest": digest}
    return {"type": "text", "text": part.text}


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(message, status=400, code=UNSUPPORTED, param=param)
