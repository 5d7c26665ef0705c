"""The engine as the protocols see it: a model id, its text, its template and the worker."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from math import ceil
from typing import Any

from astrai_cli.config import ApiDialect, ServeConfig
from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.request import GenerationRequest
from astrai_cli.errors import ContextNeed, ContextOverflowError, InvalidInputError
from astrai_cli.models.image import IMAGE_FRAME
from astrai_cli.models.text import TextModel
from astrai_cli.serving.chat_format import ChatFormat
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.metrics import ServerMetrics
from astrai_cli.serving.templates import Message
from astrai_cli.serving.transcripts import ChatPrompt, Transcripts, encode_chat
from astrai_cli.worker.client import WorkerClient
from astrai_cli.worker.streams import ChoiceEvent

ALIAS = "astrai"
"""A model id that every server answers to."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """What a request needs to become tokens, and tokens an answer."""

    model_id: str
    text: TextModel
    format: ChatFormat
    client: WorkerClient
    token_bytes: TokenBytes
    transcripts: Transcripts
    max_choices: int
    longest_token: int
    api_dialect: ApiDialect = "openai"
    streaming_preflight_timeout: float | None = None
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def create(cls, text: TextModel, client: WorkerClient, serve: ServeConfig) -> ServingEngine:
        """With the model's own template and name, where it has them and none is given.

        Raises ArtifactError for a template that does not compile.
        """
        transcripts = Transcripts()
        client.on_session_lost = transcripts.forget
        return cls(
            model_id=serve.served_model_name or text.name,
            text=text,
            format=ChatFormat.of(text, serve),
            client=client,
            token_bytes=TokenBytes(text.tokenizer),
            transcripts=transcripts,
            max_choices=serve.max_choices,
            longest_token=max(map(len, text.tokenizer.get_vocab())),
            api_dialect=serve.api_dialect,
            streaming_preflight_timeout=serve.streaming_preflight_timeout,
        )

    @property
    def max_context(self) -> int:
        """Positions of one sequence, prompt and answer together."""
        return self.client.hello.model.max_context

    @property
    def fingerprint(self) -> str:
        """Changes where the same seeded request may be answered otherwise."""
        digest = hashlib.sha256(f"{_version()} {self.client.hello.model}".encode())
        return f"fp_{digest.hexdigest()[:10]}"

    @property
    def max_prompt_chars(self) -> int:
        """Texts that are longer cannot fit the context, whatever is in them."""
        # A normalizer may join some characters.
        joined = 1 if self.text.tokenizer.normalizer is None else 4
        return self.max_context * self.longest_token * joined

    @property
    def image_frame(self) -> list[int | None]:
        """The tokens that stand for an image in prompts, None for one the model lacks."""
        return [self.text.tokenizer.token_to_id(token) for token in IMAGE_FRAME]

    def check_model(self, model: str | None) -> None:
        """Raises RequestError (404) unless `model` is this one or left out."""
        if model not in {None, self.model_id, ALIAS}:
            raise RequestError(
                f"the model {model!r:.100} does not exist; this server has {self.model_id!r}",
                status=404,
                code="model_not_found",
                param="model",
            )

    def check_choices(self, n: int, n_prompts: int = 1) -> None:
        """Raises InvalidInputError for more answers than there may ever be at once."""
        inflight = self.client.hello.capacity.max_inflight_requests
        most = min(self.max_choices, inflight)
        if n > most:
            raise InvalidInputError(f"n is {n}; this server gives at most {most}", param="n")
        if n * n_prompts > inflight:
            raise InvalidInputError(
                f"{n_prompts} prompts are to have {n} answers each; this server gives at most "
                f"{inflight} at once",
                param="prompt",
            )

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, Any],
        session_id: str | None,
        answer: int = 1,
    ) -> ChatPrompt:
        """The prompt of a conversation; in a session, with the ids of its answers.

        variables: what else the template takes. answer: so many tokens are kept free for it.
        Raises InvalidInputError where the template refuses the messages and
        ContextOverflowError where the text alone is longer than any prompt.
        """

        def render(some: Sequence[Message], begin: bool) -> str:
            text = self.format.template.render(
                some, add_generation_prompt=begin, variables=variables
            )
            self.check_text(text, answer, param="messages")
            return text

        return encode_chat(
            self.format.messages(messages),
            render,
            self.text,
            None if session_id is None else self.transcripts.get(session_id),
            variables,
        )

    def check_text(self, text: str, answer: int, *, param: str) -> None:
        """Raises ContextOverflowError for a text that no tokens make fit beside such an answer.

        Tokenizing takes long and much memory, so what cannot fit is not tried.
        """
        if len(text) > self.max_prompt_chars:
            fewest = ceil(len(text) * self.max_context / self.max_prompt_chars)
            need = ContextNeed(fewest, answer, self.max_context)
            note = f", at the least, of its {len(text)} characters"
            ContextOverflowError.check(need, param=param, note=note)

    def check_room(self, n_prompt: int, answer: int, *, param: str) -> None:
        """Raises ContextOverflowError where the context has no room for a prompt and an answer.

        The worker would refuse it too, but only after all of it had been sent there.
        """
        ContextOverflowError.check(ContextNeed(n_prompt, answer, self.max_context), param=param)

    def prompt_end(self, prompt: ChatPrompt) -> str:
        """The last of a prompt's text."""
        return self.text.tokenizer.decode(list(prompt.ids[-8:]), skip_special_tokens=False)

    def generate_choices(
        self, requests: Sequence[GenerationRequest], n: int
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """The events of n answers to each; see WorkerClient.generate_choices."""
        return self.metrics.timed(self.client.generate_choices(requests, n))

    def remember(
        self, session_id: str, prompt: ChatPrompt, answer: ChatMessage, token_ids: Sequence[int]
    ) -> None:
        """An answer ended well: a next turn of the session may go on from its ids."""
        capacity = self.client.hello.capacity.max_sessions
        (message,) = self.format.messages([answer])
        self.transcripts.record(session_id, prompt, message, token_ids, capacity)

    async def reset_session(self, session_id: str) -> None:
        """Raises SessionNotFoundError, SessionBusyError, EngineUnavailableError."""
        await self.client.reset_session(session_id)
        self.transcripts.forget(session_id)

    async def delete_session(self, session_id: str) -> None:
        """Raises as reset_session does."""
        await self.client.delete_session(session_id)
        self.transcripts.forget(session_id)

    async def get_stats(self) -> dict[str, Any]:
        """The engine's statistics and the worker's."""
        client = self.client
        worker = {
            "state": client.state.value,
            "pid": client.pid,
            "restarts": client.restart_count,
        }
        return {**await client.stats(), "worker": worker}


@cache
def _version() -> str:
    """Once: it is read from a file."""
    return version("astrai")
