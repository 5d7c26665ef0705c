"""Chat templates: messages in, the model's prompt text out, in Jinja's immutable sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from astrai_cli.errors import ArtifactError, InvalidInputError
from astrai_cli.models.text import TextModel

MAX_PROMPT_CHARS = 64 * 2**20
MAX_REPEATED = 2**20

Message = Mapping[str, Any]


class ChatTemplate:
    """One compiled template.

    Raises ArtifactError where the source is not a template.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise ArtifactError(f"chat template: {_one_line(error)}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._knows_developers = "developer" in source

    @classmethod
    def of(cls, text: TextModel) -> ChatTemplate:
        """The model's own template, or the bundled one where it has none."""
        tokens = {"bos_token": text.bos_token, "eos_token": text.eos_token}
        if text.chat_template is None:
            return cls.bundled(**tokens)
        return cls(text.chat_template, **tokens)

    @classmethod
    def bundled(cls, name: str = "chatml", **tokens: str) -> ChatTemplate:
        """The template astrai brings for models without one."""
        return cls(files("templates").joinpath(f"{name}.jinja").read_text("utf-8"), **tokens)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation.

        Raises InvalidInputError when the template refuses the messages, cannot
        render them, or renders more than MAX_PROMPT_CHARS characters.
        """
        chunks = self._template.generate(
            messages=self._normalised(messages),
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **self._tokens,
        )
        try:
            return _join(chunks)
        # The template is the model author's program: whatever it trips over is told alike.
        except Exception as error:
            raise InvalidInputError(
                f"the chat template cannot render these messages: {_one_line(error)}",
                param="messages",
            ) from error

    def _normalised(self, messages: Sequence[Message]) -> list[Message]:
        if self._knows_developers:
            return list(messages)
        return [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks an answer for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a bound on the operators that make much out of little."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) < MAX_REPEATED and abs(right) < 64):
            raise SecurityError("a power is too large")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and len(value) * times > MAX_REPEATED:
                    raise SecurityError("a repetition is too long")
        return super().call_binop(context, operator, left, right)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
    }
    environment.globals.update(helpers)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: not escaped for HTML, unlike Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _join(chunks: Iterator[str]) -> str:
    parts: list[str] = []
    room = MAX_PROMPT_CHARS
    for chunk in chunks:
        room -= len(chunk)
        if room < 0:
            raise SecurityError(f"the prompt is longer than {MAX_PROMPT_CHARS} characters")
        parts.append(chunk)
    return "".join(parts)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
