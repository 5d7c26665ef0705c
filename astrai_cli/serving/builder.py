"""What every protocol is: how its requests are read, and how its answers are written."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.request import GenerationRequest, Usage
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem
from astrai_cli.serving.generation import GenerationBody
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.parsers import OutputParser
from astrai_cli.serving.transcripts import ChatPrompt
from astrai_cli.serving.transport.sse import KEEP_ALIVE

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """What a builder remembers of a request while it is answered.

    request: what the engine continues; others: with the same options, further prompts. n: how
    many answers there are to be to each.
    make_parser: of what reads one answer. shows_reasoning: whether the client is to see it.
    include_usage: whether a stream ends with it, in protocols where that is a choice.
    system_fingerprint: of what else than the request makes an answer what it is.
    """

    id: str
    model: str
    request: GenerationRequest
    token_bytes: TokenBytes
    make_parser: Callable[[], OutputParser]
    others: tuple[GenerationRequest, ...] = ()
    stream: bool = False
    include_usage: bool = False
    shows_reasoning: bool = True
    n: int = 1
    system_fingerprint: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def requests(self) -> tuple[GenerationRequest, ...]:
        return (self.request, *self.others)

    @property
    def n_choices(self) -> int:
        return self.n * len(self.requests)


class Prepared(NamedTuple):
    """A request that was checked. prompt: of its conversation, where it is one."""

    ctx: ResponseContext
    prompt: ChatPrompt | None


def usage_of(choices: Sequence[Choice], n_prompts: int = 1) -> Usage:
    """The tokens of all answers, of which each prompt has as many, and is counted once."""
    usages = [choice.finish.usage for choice in choices]
    firsts = usages[:: len(usages) // n_prompts]
    return Usage(
        sum(usage.prompt_tokens for usage in firsts),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in firsts),
        sum(usage.accepted_tokens for usage in usages),
        sum(usage.rejected_tokens for usage in usages),
    )


class ResponseBuilder(ABC, Generic[Body]):
    """One protocol: how its requests are read and its answers written. One for each request.

    sign_of_life: what a stream sends while the model has nothing to say.
    """

    request_model: type[Body]
    sign_of_life = KEEP_ALIVE

    @abstractmethod
    def prepare(self, request: Body, engine: ServingEngine, session_id: str | None) -> Prepared:
        """Check a request and make its prompt. May take long; runs beside the event loop."""

    @abstractmethod
    def format_stream_start(self, ctx: ResponseContext, usage: Usage) -> str:
        """The events before the first piece; usage: when the prompt had been run."""

    @abstractmethod
    def format_chunk(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        """The events of what a choice has just taken; none where the client sees no news."""

    @abstractmethod
    def format_choice_end(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        """The events that end one choice, with the news it held back until then."""

    @abstractmethod
    def format_stream_end(self, ctx: ResponseContext, choices: Sequence[Choice]) -> str:
        """The events after the end of all choices."""

    @abstractmethod
    def format_response(self, ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    @abstractmethod
    def message(self, ctx: ResponseContext, choice: Choice) -> ChatMessage:
        """A finished choice as the message a client sends back in its next request."""

    @abstractmethod
    def format_error(self, problem: Problem) -> dict[str, Any]:
        """The body of an answer that is an error."""

    @abstractmethod
    def format_stream_error(self, problem: Problem) -> str:
        """The event of an error after the answer began."""
