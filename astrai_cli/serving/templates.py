"""Chat templates: messages in, the model's prompt text out, in Jinja's immutable sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from astrai_cli.errors import ArtifactError, InvalidInputError
from astrai_cli.models.spec import MUSE_GLIMMER
from astrai_cli.models.text import TextModel

MAX_PROMPT_CHARS = 64 * 2**20
MAX_REPEATED = 2**20
MAX_TEMPLATE_BYTES = 2**20

Message = Mapping[str, Any]

# By architecture; for all others chatml.
_BUNDLED = {MUSE_GLIMMER: "muse"}


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
        self._source = source

    @classmethod
    def of(cls, text: TextModel, choice: str = "auto") -> ChatTemplate:
        """The template of a model.

        choice: auto for the model's own, or the bundled one of its family where it has
        none; bundled for that one; or a file. Raises InvalidInputError for a file that
        cannot be read.
        """
        tokens = {"bos_token": text.bos_token, "eos_token": text.eos_token}
        if choice not in {"auto", "bundled"}:
            return cls(_read(Path(choice)), **tokens)
        if choice == "bundled" or text.chat_template is None:
            return cls.bundled(_BUNDLED.get(text.architecture, "chatml"), **tokens)
        return cls(text.chat_template, **tokens)

    @classmethod
    def bundled(cls, name: str = "chatml", **tokens: str) -> ChatTemplate:
        """The template astrai brings for models without one."""
        return cls(files("templates").joinpath(f"{name}.jinja").read_text("utf-8"), **tokens)

    def knows(self, word: str) -> bool:
        """Whether the template says anything of a variable, key or role."""
        return word in self._source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation. variables: what else the template takes.

        Raises InvalidInputError when the template refuses the messages, cannot
        render them, or renders more than MAX_PROMPT_CHARS characters.
        """
        chunks = self._template.generate(
            {
                "tools": None,
                "documents": None,
                **(variables or {}),
                "messages": self._normalised(messages),
                "add_generation_prompt": add_generation_prompt,
                **self._tokens,
            }
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
        if self.knows("developer"):
            return list(messages)
        return [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            source = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(source) > MAX_TEMPLATE_BYTES:
            raise InvalidInputError(
                f"{path}: a chat template has at most {MAX_TEMPLATE_BYTES} bytes",
                param="chat_template",
            )
        return source.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path}: cannot be read as a chat template: {_one_line(error)}", param="chat_template"
        ) from error


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks an answer for training; here it is its body."""

    tags = {"generation"}

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
