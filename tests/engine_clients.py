"""Clients of an engine on the hashing executor, and what each of them must get."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

import numpy as np
from byte_tokenizer import VOCABULARY, byte_text
from numpy_executor import NumpyExecutor, hash_logits

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine, RequestHandle
from astrai_cli.engine.request import Event, Finish, GenerationRequest, Piece, SamplingParams
from astrai_cli.engine.sampling import SamplingPipeline
from astrai_cli.engine.speculation import Proposer
from astrai_cli.models.text import TextModel
from backends.base import Step

CONTEXT = 48
_events = itertools.count()
GREEDY = SamplingParams(temperature=0)


def alone(request: GenerationRequest) -> tuple[int, ...]:
    """What a request must give, computed from nothing but its own history."""
    seed = request.sampling.seed or 0
    pipeline = SamplingPipeline.from_params(request.sampling, seed, request.prompt)
    history = list(request.prompt)
    assert request.max_tokens is not None
    for index in range(request.max_tokens):
        history.append(pipeline.sample(hash_logits(np.array(history), VOCABULARY), index))
    return tuple(history[len(request.prompt) :])


@dataclass
class Client:
    """One request: when it arrives and when its client gives up, in steps of the executor."""

    request: GenerationRequest
    arrival: int = 0
    cancel_after: int | None = None
    events: list[Event] = field(default_factory=list)
    first_event: int = -1
    started: bool = False
    handle: RequestHandle | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def submit(self, engine: InferenceEngine) -> None:
        if not self.started:
            self.started = True
            self.handle = engine.submit(self.request, self.take)

    def take(self, event: Event) -> None:
        assert not self.ended.is_set(), "an event after the Finish"
        if not self.events:
            self.first_event = next(_events)
        self.events.append(event)
        if isinstance(event, Finish):
            self.ended.set()

    @property
    def token_ids(self) -> tuple[int, ...]:
        pieces = [event for event in self.events if isinstance(event, Piece)]
        return tuple(token_id for piece in pieces for token_id in piece.token_ids)

    @property
    def finish(self) -> Finish:
        assert self.ended.wait(30)
        finish = self.events[-1]
        assert isinstance(finish, Finish)
        return finish


def run_schedule(
    clients: list[Client],
    limits: LimitsConfig,
    executor: NumpyExecutor | None = None,
    text: TextModel | None = None,
    proposer: Proposer | None = None,
) -> InferenceEngine:
    """Let clients arrive and give up at their steps, from inside the executor.

    When the engine runs out of work before a client's step, the client comes early.
    """
    executor = executor or NumpyExecutor(VOCABULARY, CONTEXT, 32)
    engine = InferenceEngine(executor, text or byte_text(), limits, proposer=proposer)

    def before_step(step: Step) -> None:
        now = len(executor.steps)
        for client in clients:
            if client.arrival <= now:
                client.submit(engine)
            if client.handle and client.cancel_after is not None and client.cancel_after <= now:
                client.handle.cancel()

    executor.before_step = before_step
    with engine:
        for client in sorted(clients, key=lambda client: client.arrival):
            client.submit(engine)
            while left := [c for c in clients if c.started and not c.ended.is_set()]:
                assert left[0].ended.wait(30)
    return engine


def request(n_prompt: int, max_tokens: int, first: int = 1) -> GenerationRequest:
    prompt = (first, *range(2, n_prompt + 1))
    return GenerationRequest(prompt, GREEDY, max_tokens, ignore_eos=True)
