"""The engine: prompts in, answers out, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import KVCache
from astrai_cli.engine.cache.sizing import make_cache
from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.generation import GenerationTask, ScoringTask
from astrai_cli.engine.limits import EngineLimits
from astrai_cli.engine.prompts import ImageSource, PromptPreparer
from astrai_cli.engine.request import Event, Finish, GenerationRequest, Piece, SamplingParams
from astrai_cli.engine.result import Completion, GenerateResult
from astrai_cli.engine.scheduler import InferenceScheduler
from astrai_cli.engine.sessions import Turn
from astrai_cli.engine.speculation import Proposer, make_proposer
from astrai_cli.engine.task import Sink, Task
from astrai_cli.errors import InvalidInputError, RequestCancelledError
from astrai_cli.models.text import TextModel
from backends.base import Executor, ExecutorInfo

Prompt = str | Sequence[int]
"""Text, or token ids."""

Prompts = list[str] | list[list[int]] | list[Prompt]

Stream = Generator[Piece, None, Completion]
"""Pieces as they come; returns the whole answer. Closing it early cancels the request."""


class GenerateOptions(TypedDict, total=False):
    """What may be asked of an answer; SamplingParams and GenerationRequest say what it means.

    images: one for each `<|patch|>` of the prompt, in their order.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    write_special: bool
    logprobs: int | None
    session_id: str | None
    timeout: float | None
    images: Sequence[ImageSource]
    drafts: bool


_SAMPLING_OPTIONS = frozenset(field.name for field in fields(SamplingParams))


@dataclass(frozen=True, slots=True)
class RequestHandle:
    """A request in the engine."""

    _scheduler: InferenceScheduler
    _task: Task

    def cancel(self) -> None:
        """End the request before its next step; it still gets its Finish."""
        self._scheduler.cancel(self._task)


class InferenceEngine:
    """Continues prompts on one executor; safe to use from many threads.

    Owns the executor and closes it. A context manager: leaving it shuts down.
    """

    def __init__(
        self,
        executor: Executor,
        text: TextModel,
        limits: LimitsConfig | None = None,
        cache: KVCache | None = None,
        on_evicted: Callable[[str], None] = lambda session_id: None,
        *,
        proposer: Proposer | None = None,
    ) -> None:
        """cache, proposer: those that `limits` ask for when left out.
        on_evicted: told of every session that is evicted, in whichever thread; must not block.

        Raises InvalidInputError where the memory for the cells cannot be had or a limit
        is beyond the executor's, and ModelFileError for a tokenizer that is not byte-level.
        """
        self.text = text
        self.limits = limits or LimitsConfig()
        self._executor = executor
        self._info = executor.info
        self._token_bytes = TokenBytes(text.tokenizer)
        self._prompts = PromptPreparer(executor.info, text, self.limits.max_image_bytes)
        cache = cache or self._make_cache(executor.info)
        self._scheduler = InferenceScheduler(
            executor,
            self.limits,
            cache,
            on_evicted,
            proposer=proposer or make_proposer(self.limits, executor, cache),
        )

    @property
    def info(self) -> ExecutorInfo:
        """What runs, and its bounds."""
        return self._info

    @property
    def max_context(self) -> int:
        """Positions one request may use, prompt and answer together."""
        return self._info.max_context

    @overload
    def generate(
        self, prompt: Prompt, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Prompts, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...
    @overload
    def generate(
        self, prompt: Prompt, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> Stream: ...
    @overload
    def generate(
        self, prompt: Prompts, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> list[Stream]: ...
    def generate(
        self,
        prompt: Prompt | Prompts,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion] | Stream | list[Stream]:
        """Continue one prompt, or several at once.

        Waits for room where the limit of requests in flight is reached. Raises
        InvalidInputError, ContextOverflowError, ExecutionError, EngineUnavailableError.
        """
        if _is_one_prompt(prompt):
            return self.generate_with_request(self.request(cast(Prompt, prompt), **options), stream)
        requests = [self.request(each, **options) for each in cast(Sequence[Prompt], prompt)]
        if stream:
            return [self._stream(request) for request in requests]
        return self._complete(requests)

    def generate_with_request(
        self, request: GenerationRequest, stream: bool = False
    ) -> Completion | Stream:
        """As generate does, for one request that is already made."""
        return self._stream(request) if stream else self._complete([request])[0]

    async def generate_async(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[Event, None]:
        """The events of one answer: pieces, then a Finish. Closing it early cancels the request.

        Raises as submit does, before the first event.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def sink(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        handle = self.submit(self.request(prompt, **options), sink)
        try:
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Finish):
                    return
        finally:
            handle.cancel()

    def submit(
        self, request: GenerationRequest, sink: Sink, *, wait: bool = False
    ) -> RequestHandle:
        """Start a request. The sink gets its pieces and one Finish, on the engine thread.

        With `wait`, waits for room; else raises OverloadedError where the limit of
        requests in flight is reached. Raises InvalidInputError for what is out of
        bounds and for an image that cannot be used, ContextOverflowError for what the
        context cannot hold, and EngineUnavailableError when the engine is stopping or
        has died. An image is decoded here, in the caller's thread.
        """
        return self.submit_choices(request, [sink], wait=wait)[0]

    def submit_choices(
        self, request: GenerationRequest, sinks: Sequence[Sink], *, wait: bool = False
    ) -> list[RequestHandle]:
        """Start a request once for each sink: all of them or none, as submit does.

        They are requests of their own, but for their seeds: that of number i is
        sampling.choice_seed(seed, i). Raises InvalidInputError for several of a session.
        """
        if len(sinks) > 1 and request.session_id is not None:
            raise InvalidInputError(
                f"n is {len(sinks)}; a request of a session has one answer", param="n"
            )
        if request.images and not wait:
            # Before the work of decoding them.
            self._scheduler.check_room(len(sinks))
        prompt, n_tokens_max = self._prompts.prepare(request)
        tasks = [
            GenerationTask(
                request,
                prompt,
                n_tokens_max,
                sink,
                end_ids=self.text.special_tokens.eos,
                token_bytes=self._token_bytes,
                choice=choice,
            )
            for choice, sink in enumerate(sinks)
        ]
        self._scheduler.submit(*tasks, wait=wait)
        return [RequestHandle(self._scheduler, task) for task in tasks]

    def request(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationRequest:
        """A request from a prompt and options; text is encoded as TextModel.encode_prompt says.

        Raises InvalidInputError for images that do not fit the prompt or cannot be read.
        """
        given: dict[str, Any] = dict(options)
        sampling = {name: given.pop(name) for name in _SAMPLING_OPTIONS & given.keys()}
        if "logit_bias" in sampling:
            sampling["logit_bias"] = tuple(sampling["logit_bias"].items())
        stop = given.pop("stop", ())
        ids = tuple(self.text.encode_prompt(prompt) if isinstance(prompt, str) else prompt)
        return GenerationRequest(
            prompt=ids,
            images=self._prompts.place(ids, given.pop("images", ())),
            sampling=SamplingParams(**sampling),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(given.pop("stop_token_ids", ())),
            **given,
        )

    def score(
        self, token_ids: Sequence[int], images: Sequence[ImageSource] = ()
    ) -> NDArray[np.float32]:
        """The logits after each token: float32 [tokens, vocabulary].

        images: as in GenerateOptions; each of their rows is a token here. Raises as generate
        does, and RequestCancelledError when the engine is shut down.
        """
        prompt = self._prompts.prepare_prompt(token_ids, self._prompts.place(token_ids, images))
        result = GenerateResult()
        task = ScoringTask(prompt, self._info.spec.vocab_size, result.put)
        self._scheduler.submit(task, wait=True)
        try:
            completion = result.wait_completion()
        finally:
            self._scheduler.cancel(task)
        if completion.finish_reason == "cancelled":
            raise RequestCancelledError("scoring was cancelled: the engine is stopping")
        return task.logits

    def get_stats(self) -> dict[str, Any]:
        """Counters and levels; see EngineStats and InferenceScheduler.get_stats."""
        return self._scheduler.get_stats()

    def last_turn(self, session_id: str) -> Turn | None:
        """What a session goes on from; None where it starts anew. Raises SessionNotFoundError."""
        return self._scheduler.turn(session_id)

    def reset_session(self, session_id: str) -> None:
        """Forget a session's history and free its cells.

        Raises SessionNotFoundError, and SessionBusyError where it has requests in flight.
        """
        self._scheduler.reset_session(session_id)

    def delete_session(self, session_id: str) -> None:
        """Forget a session altogether. Raises as reset_session does."""
        self._scheduler.delete_session(session_id)

    def shutdown(self, timeout: float = 0.0) -> None:
        """Give running requests `timeout` seconds, cancel the rest, close the executor."""
        self._scheduler.shutdown(timeout)
        self._executor.close()

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _make_cache(self, info: ExecutorInfo) -> KVCache:
        n_sequences = EngineLimits.resolve(self.limits, info).max_sequences
        return make_cache(
            self.limits,
            n_sequences,
            info.max_context,
            info.cell_bounds,
            draft_max_cells=info.draft_max_cells,
        )

    def _complete(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        started: list[tuple[GenerateResult, RequestHandle]] = []
        try:
            for request in requests:
                result = GenerateResult()
                started.append((result, self.submit(request, result.put, wait=True)))
            return [result.wait_completion() for result, _ in started]
        finally:
            for _, handle in started:
                handle.cancel()

    def _stream(self, request: GenerationRequest) -> Stream:
        result = GenerateResult()
        return _cancelling(result.stream(), self.submit(request, result.put, wait=True))


def _is_one_prompt(prompt: Prompt | Prompts) -> bool:
    return isinstance(prompt, str) or len(prompt) == 0 or isinstance(prompt[0], int | np.integer)


def _cancelling(stream: Stream, handle: RequestHandle) -> Stream:
    """The stream, whose early end cancels the request."""
    try:
        return (yield from stream)
    finally:
        handle.cancel()
