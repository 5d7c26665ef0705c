"""Images on an executor whose logits betray any row of the wrong image or place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_text
from engine_clients import CONTEXT, GREEDY, Client, run_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_executor import NumpyExecutor
from seeing_executor import (
    PATCH,
    SeeingExecutor,
    alone_with_images,
    png,
    seeing_text,
    sees,
)

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.images import ImageIdentities
from astrai_cli.engine.request import Finish, GenerationRequest, ImageInput
from astrai_cli.errors import (
    ContextOverflowError,
    EngineUnavailableError,
    InvalidInputError,
    OverloadedError,
)
from astrai_cli.models.image import PreparedImage
from backends.base import Step

# The first two have the same grid of 3 x 4, the last one is a single row.
PICTURES = [png(8, 6, 1), png(8, 6, 2), png(8, 10, 3), png(2, 2, 4)]


def ask(
    before: tuple[int, ...],
    after: tuple[int, ...],
    picture: bytes = PICTURES[0],
    max_tokens: int = 4,
    session_id: str | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        (*before, PATCH, *after),
        GREEDY,
        max_tokens,
        ignore_eos=True,
        session_id=session_id,
        images=(ImageInput(picture, len(before)),),
    )


def open_engine(executor: SeeingExecutor | None = None, **limits: Any) -> InferenceEngine:
    limits.setdefault("page_size", 4)
    return InferenceEngine(executor or SeeingExecutor(), seeing_text(), LimitsConfig(**limits))


def run(engine: InferenceEngine, request: GenerationRequest) -> Client:
    """Submit and check the answer."""
    client = Client(request)
    client.submit(engine)
    assert client.finish.reason == "length"
    assert client.token_ids == alone_with_images(request)
    return client


def in_the_first_step(executor: SeeingExecutor, act: Callable[[], None]) -> None:
    """Do something once, on the engine thread, before the first step runs."""

    def before_step(step: Step) -> None:
        executor.before_step = lambda step: None
        act()

    executor.before_step = before_step


@pytest.mark.parametrize("chunk", [32, 7, 1])
@pytest.mark.parametrize("n_before", [0, 3, 8])
@pytest.mark.parametrize("after", [(), (5, 6)])
def test_rows_are_positions_of_the_prompt(chunk: int, n_before: int, after: Any) -> None:
    executor = SeeingExecutor()
    with open_engine(executor, max_prefill_chunk=chunk) as engine:
        request = ask(tuple(range(n_before)), after)
        usage = run(engine, request).finish.usage
        assert usage.prompt_tokens == n_before + 12 + len(after)
        scores = engine.score(request.prompt, images=[PICTURES[0]])
        assert len(scores) == usage.prompt_tokens
    assert executor.threads == {"astrai-engine"}


def test_the_same_image_is_taken_from_the_cache_and_not_encoded_again() -> None:
    executor = SeeingExecutor()
    with open_engine(executor) as engine:
        run(engine, ask((1, 2, 3, 4), (5, 6)))
        again = run(engine, ask((1, 2, 3, 4), (7, 8)))
        assert again.finish.usage.cached_tokens == 16
        assert (executor.n_encoded, engine.get_stats()["images_encoded"]) == (1, 1)
        # Here the cache has 10 of its 12 rows, so the others are needed.
        other = run(engine, ask((1, 2, 3, 4), ()))
        assert other.finish.usage.cached_tokens == 12
        assert executor.n_encoded == 2


def test_images_with_the_same_grid_share_nothing() -> None:
    executor = SeeingExecutor()
    with open_engine(executor) as engine:
        for picture in (*PICTURES, *PICTURES):
            run(engine, ask((1, 2, 3, 4), (5, 6, 7, 8, 9), picture))
        cached = [
            run(engine, ask((1, 2, 3, 4), (9, 9), picture)).finish.usage.cached_tokens
            for picture in PICTURES
        ]
    assert cached == [16, 16, 24, 4]


def test_a_placeholder_without_an_image_is_no_row_of_one() -> None:
    executor = SeeingExecutor()
    with open_engine(executor) as engine:
        run(engine, ask((), (5, 6)))
        words = GenerationRequest((PATCH,) * 12 + (5, 6), GREEDY, 4, ignore_eos=True)
        assert run(engine, words).finish.usage.cached_tokens == 0


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
def test_a_session_goes_on_after_its_image(cache: str) -> None:
    executor = SeeingExecutor(max_context=128)
    with open_engine(executor, cache=cache) as engine:
        first = ask((1, 2, 3), (5,), session_id="s")
        answer = run(engine, first).token_ids
        history = (5, *answer)
        for more in ((6, 7), (8,), (9, 10, 11)):
            follow_up = ask((1, 2, 3), history + more, session_id="s")
            client = run(engine, follow_up)
            # The last token of an answer was never run itself.
            n_known = len(sees(follow_up)) - len(more)
            assert client.finish.usage.cached_tokens == n_known - 1
            history += (*more, *client.token_ids)
        assert executor.n_encoded == 1
        last = engine.last_turn("s")
        assert last is not None
        assert (last.history[3:15] < 0).all()
        other = ask((1, 2, 3), (*history, 1), PICTURES[1], session_id="s")
        assert run(engine, other).finish.usage.cached_tokens < 4


def test_several_answers_share_one_encoding() -> None:
    executor = SeeingExecutor()
    with open_engine(executor, prefix_cache_entries=1) as engine:
        request = ask((1,), (2, 3))
        clients = [Client(request) for _ in range(3)]
        engine.submit_choices(request, [client.take for client in clients])
        for client in clients:
            assert client.finish.usage.prompt_tokens == 15
            assert client.token_ids == alone_with_images(request)
    assert executor.n_encoded == 1


def test_a_failed_encoding_fails_its_step_and_can_be_tried_again() -> None:
    executor = SeeingExecutor()
    texts = [Client(GenerationRequest((n, 2, 3), GREEDY, 30, ignore_eos=True)) for n in (1, 2)]
    request = ask((1,), (2, 3, 4))
    answers = [Client(request), Client(request)]

    def fail_once() -> None:
        executor.before_encoding = lambda: None
        raise RuntimeError("the tower fell")

    def arrive() -> None:
        texts[1].submit(engine)
        engine.submit_choices(request, [client.take for client in answers])

    executor.before_encoding = fail_once
    in_the_first_step(executor, arrive)
    with open_engine(executor) as engine:
        texts[0].submit(engine)
        for client in (*texts, answers[0]):
            assert client.finish.reason == "error"
            assert client.finish.error_code == "execution_error"
            assert "the tower fell" in (client.finish.error or "")
        # The second answer waited for what the first one would compute of its prompt.
        assert answers[1].finish.reason == "length"
        assert answers[1].token_ids == alone_with_images(request)
        assert executor.n_encoded == 1
        run(engine, ask((1,), (9,)))
        assert engine.get_stats()["cells_used"] == 0


@pytest.mark.parametrize(
    "rows", [np.zeros((11, 1), np.float32), np.full((12, 1), np.nan, np.float32)]
)
def test_unusable_embeddings_are_an_error(
    rows: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = SeeingExecutor()
    with open_engine(executor) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(executor, "encode_image", lambda pixels: rows)
            client = Client(ask((1,), (2,)))
            client.submit(engine)
            assert client.finish.error_code == "execution_error"
            assert "embeddings" in (client.finish.error or "")
        run(engine, ask((1,), (2,)))


def test_cancelled_while_encoding() -> None:
    executor = SeeingExecutor()
    encoding, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        encoding.set()
        assert go_on.wait(30)

    executor.before_encoding = wait
    with open_engine(executor) as engine:
        client = Client(ask((1,), (2,), max_tokens=40))
        client.submit(engine)
        assert encoding.wait(30)
        assert client.handle is not None
        client.handle.cancel()
        go_on.set()
        assert client.finish.reason == "cancelled"
        assert engine.get_stats()["cells_used"] == 0
        run(engine, ask((1,), (2,)))


def test_preempted_with_an_image_it_gives_the_same_tokens() -> None:
    executor = SeeingExecutor(CONTEXT)
    clients = [Client(ask((n,), (2, 3), PICTURES[n], max_tokens=30)) for n in (0, 1)]
    in_the_first_step(executor, lambda: clients[1].submit(engine))
    with open_engine(executor, max_cells=CONTEXT + 8 + 1) as engine:
        clients[0].submit(engine)
        for client in clients:
            assert client.finish.reason == "length"
            assert client.token_ids == alone_with_images(client.request)
        assert engine.get_stats()["preemptions"] == 1
    assert executor.n_encoded == 2


def test_what_the_context_must_hold_are_the_rows() -> None:
    with open_engine(SeeingExecutor(max_context=20)) as engine:
        run(engine, ask((1, 2), (3, 4), max_tokens=4))
        with pytest.raises(ContextOverflowError, match="16 tokens > 15 maximum"):
            engine.generate_with_request(ask((1, 2), (3, 4), max_tokens=5))
        with pytest.raises(ContextOverflowError, match="22 tokens > 16 maximum"):
            engine.generate_with_request(ask((1,), (3,), PICTURES[2]))


def test_no_image_is_decoded_for_a_request_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = SeeingExecutor()
    gate = threading.Event()
    executor.before_step = lambda step: assert_set(gate)
    with open_engine(executor, max_inflight_requests=1) as engine:
        running = Client(ask((1,), (2,)))
        running.submit(engine)
        with monkeypatch.context() as patched:
            patched.setattr("astrai_cli.engine.prompts.prepare_image", None)
            with pytest.raises(OverloadedError):
                Client(ask((1,), (2,))).submit(engine)
        gate.set()
        assert running.finish.reason == "length"
    with pytest.raises(EngineUnavailableError):
        Client(ask((1,), (2,))).submit(engine)


def assert_set(gate: threading.Event) -> None:
    assert gate.wait(30)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ((ImageInput(PICTURES[0], 1), ImageInput(PICTURES[0], 2)), "2 images, of at most 1"),
        ((ImageInput(PICTURES[0], 3),), "at 3 of the prompt's 3 tokens"),
        ((ImageInput(PICTURES[0], -1),), "at -1 of"),
        ((ImageInput(PICTURES[0], 0),), r"at token 7 of the prompt; .* <\|patch\|>, 258"),
        ((ImageInput(b"no image", 1),), "not a JPEG or PNG"),
        ((ImageInput(PICTURES[0], 1),), "more bytes than max_image_bytes, 100"),
    ],
)
def test_refuses_images_that_do_not_fit(images: tuple[ImageInput, ...], message: str) -> None:
    with (
        open_engine(max_image_bytes=100) as engine,
        pytest.raises(InvalidInputError, match=message),
    ):
        engine.generate_with_request(GenerationRequest((7, PATCH, PATCH), images=images))


def test_without_a_tower_there_are_no_images() -> None:
    blind = InferenceEngine(NumpyExecutor(PATCH + 1), seeing_text())
    with blind as engine, pytest.raises(InvalidInputError, match="it has no vision tower"):
        engine.generate([1, PATCH], images=[PICTURES[0]])
    wordless = InferenceEngine(SeeingExecutor(), byte_text())
    with wordless as engine, pytest.raises(InvalidInputError, match=r"no token <\|patch\|>"):
        engine.generate([1, PATCH], images=[PICTURES[0]])


def test_identities_are_never_those_of_another_image() -> None:
    identities = ImageIdentities(capacity=2)
    pixels = np.zeros((4, 4, 3), np.uint8)
    images = [PreparedImage(pixels, (2, 2), bytes([n])) for n in range(3)]
    first = [identities.of(image).tolist() for image in images]
    assert sorted(chain(*first)) == list(range(-12, 0))
    # Number 0 was forgotten.
    assert [identities.of(image).tolist() for image in images[1:]] == first[1:]
    assert identities.of(images[0]).tolist() == [-13, -14, -15, -16]


_texts = st.lists(st.integers(0, 3), max_size=9).map(tuple)
_requests = st.builds(
    ask, _texts, _texts, st.sampled_from(PICTURES[:2]), max_tokens=st.integers(1, 12)
) | st.builds(
    lambda first, rest, n: GenerationRequest((first, *rest), GREEDY, n, ignore_eos=True),
    st.integers(0, 3),
    _texts,
    st.integers(1, 12),
)
_clients = st.builds(
    Client,
    request=_requests,
    arrival=st.integers(0, 30),
    cancel_after=st.none() | st.integers(0, 40),
)


@st.composite
def _talk(draw: st.DrawFn) -> list[Client]:
    """A session's turns about an image, which may be another one in the next turn."""
    turns: list[Client] = []
    after: tuple[int, ...] = ()
    for arrival in sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=3))):
        after += draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple))
        picture = draw(st.sampled_from([PICTURES[0], PICTURES[0], PICTURES[1]]))
        turn = ask((1, 2), after, picture, max_tokens=draw(st.integers(1, 6)), session_id="s")
        turns.append(Client(turn, arrival, draw(st.none() | st.integers(0, 60))))
        after += alone_with_images(turn)
    return turns


@st.composite
def _limits(draw: st.DrawFn) -> LimitsConfig:
    limits: dict[str, Any] = {"max_decode_sequences": draw(st.integers(1, 4))}
    limits["max_prefill_chunk"] = draw(st.integers(1, 32))
    limits["cache"] = draw(st.sampled_from(["contiguous", "paged", "paged"]))
    if limits["cache"] == "paged":
        limits["page_size"] = draw(st.sampled_from([1, 3, 4, 16]))
        if draw(st.booleans()):
            limits["max_cells"] = CONTEXT + 1 + 16 * draw(st.integers(0, 4))
        else:
            limits["prefix_cache_entries"] = draw(st.integers(0, 2))
    return LimitsConfig(**limits)


@settings(max_examples=150, deadline=None)
@given(clients=st.lists(_clients, min_size=1, max_size=8), talk=_talk(), limits=_limits())
def test_any_schedule_gives_each_request_what_it_gets_alone(
    clients: list[Client], talk: list[Client], limits: LimitsConfig
) -> None:
    clients = clients + talk
    executor = SeeingExecutor(CONTEXT)
    run_schedule(clients, limits, executor, seeing_text())
    for client in clients:
        expected = alone_with_images(client.request)
        finish: Finish = client.finish
        if finish.reason != "cancelled":
            assert finish.reason == "length"
            assert client.token_ids == expected
        assert client.token_ids == expected[: len(client.token_ids)]
        n_prompt = len(sees(client.request))
        assert finish.usage.prompt_tokens == n_prompt > finish.usage.cached_tokens
    assert executor.n_encoded <= sum(len(client.request.images) for client in clients)
