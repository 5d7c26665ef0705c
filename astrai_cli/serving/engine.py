"""The engine as the protocols see it: a model id, its text, its template and the worker."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from astrai_cli.engine.request import Event, GenerationRequest
from astrai_cli.errors import ContextOverflowError
from astrai_cli.models.text import TextModel
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.metrics import ServerMetrics
from astrai_cli.serving.templates import ChatTemplate, Message
from astrai_cli.worker.client import WorkerClient

ALIAS = "astrai"
"""A model id that every server answers to."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """What a request needs to become tokens, and tokens an answer."""

    model_id: str
    text: TextModel
    template: ChatTemplate
    client: WorkerClient
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def create(cls, text: TextModel, client: WorkerClient, model_id: str | None) -> ServingEngine:
        """With the model's own template and name, where it has them and none is given.

        Raises ArtifactError for a template that does not compile.
        """
        return cls(model_id or text.name, text, ChatTemplate.of(text), client)

    @property
    def max_context(self) -> int:
        """Positions of one sequence, prompt and answer together."""
        return self.client.hello.model.max_context

    def check_model(self, model: str | None) -> None:
        """Raises RequestError (404) unless `model` is this one or left out."""
        if model not in {None, self.model_id, ALIAS}:
            raise RequestError(
                f"the model {model!r:.100} does not exist; this server has {self.model_id!r}",
                status=404,
                code="model_not_found",
                param="model",
            )

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt's token ids.

        Raises InvalidInputError where the template refuses the messages and
        ContextOverflowError where the context has no room for an answer.
        """
        prompt = tuple(self.text.encode_prompt(self.template.render(messages)))
        # The engine would refuse it too, but only after all of it had been sent there.
        if len(prompt) >= self.max_context:
            raise ContextOverflowError(
                f"the prompt has {len(prompt)} tokens; the context of {self.max_context} "
                "must hold it and an answer",
                param="messages",
            )
        return prompt

    def generate_async(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """The events of an answer; see WorkerClient.generate_async."""
        return self.metrics.timed(self.client.generate_async(request))

    async def get_stats(self) -> dict[str, Any]:
        """The engine's statistics and the worker's."""
        client = self.client
        worker = {
            "state": client.state.value,
            "pid": client.pid,
            "restarts": client.restart_count,
        }
        return {**await client.stats(), "worker": worker}
