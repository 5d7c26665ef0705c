"""The engine on any executor: batches, sessions, prefixes, and clients that leave.

A backend's test module subclasses `EngineSuite` and gives the fixture `artifact`: Q4_K_M with
MMPROJ, in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from engine_clients import Client
from muse_fixtures import IMAGE, reference

from astrai_cli import load
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, GenerationRequest, SamplingParams

PATCH = 1020
N_ROWS = 15
PROMPTS = [list(range(n, 2 * n)) for n in (1, 4, 9, 17, 30, 33, 64, 100)]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


class EngineSuite:
    """The suite. limits: those of the engine."""

    backend: ClassVar[str]
    limits: ClassVar[dict[str, Any]] = {
        "page_size": 4,
        "max_context": 256,
        "max_prefill_chunk": 32,
    }

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls) -> Path:
        raise NotImplementedError("each backend's tests give this fixture")

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, artifact: Path) -> Iterator[InferenceEngine]:
        with load(artifact, backend=cls.backend, **cls.limits) as engine:
            yield engine

    @pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.2, "seed": 11}])
    def test_eight_at_once_get_the_tokens_they_get_alone(
        self, engine: InferenceEngine, sampling: dict[str, Any]
    ) -> None:
        options = GREEDY | sampling
        together = engine.generate(PROMPTS, **options)
        alone = [engine.generate(prompt, **options) for prompt in PROMPTS]
        assert [each.token_ids for each in together] == [each.token_ids for each in alone]

    def test_a_session_goes_on_from_its_cells(self, engine: InferenceEngine) -> None:
        first = engine.generate(PROMPTS[4], session_id="s", **GREEDY)
        ids = [*PROMPTS[4], *first.token_ids, 5, 6, 7]
        second = engine.generate(ids, session_id="s", **GREEDY)
        assert second.usage.cached_tokens == len(ids) - 4
        engine.delete_session("s")
        assert engine.generate(ids, **GREEDY).token_ids == second.token_ids

    def test_requests_share_the_cells_of_a_prefix(self, artifact: Path) -> None:
        prompts = [[*PROMPTS[7], n, n + 1] for n in range(4)]
        with load(artifact, backend=self.backend, prefix_cache_entries=2, **self.limits) as engine:
            together = engine.generate(prompts, **GREEDY)
            later = engine.generate(prompts[3], **GREEDY)
        assert sum(each.usage.cached_tokens for each in together) == 3 * 100
        assert later.usage.cached_tokens == 100
        with load(artifact, backend=self.backend, cache="contiguous", **self.limits) as engine:
            alone = [engine.generate(prompt, **GREEDY).token_ids for prompt in prompts]
        assert [each.token_ids for each in together] == alone
        assert later.token_ids == alone[3]

    def test_one_that_leaves_disturbs_nobody(self, engine: InferenceEngine) -> None:
        expected = [engine.generate(prompt, **GREEDY).token_ids for prompt in PROMPTS[:3]]
        sampling = SamplingParams(temperature=0)
        clients = [
            Client(GenerationRequest(tuple(prompt), sampling, 8, ignore_eos=True))
            for prompt in PROMPTS[:3]
        ]
        answering = threading.Event()
        leaver = Client(GenerationRequest(tuple(PROMPTS[6]), sampling, 150, ignore_eos=True))

        def take(event: Event) -> None:
            leaver.take(event)
            answering.set()

        handle = engine.submit(leaver.request, take)
        assert answering.wait(30)
        for client in clients:
            client.submit(engine)
        handle.cancel()
        assert leaver.finish.reason == "cancelled"
        assert len(leaver.token_ids) < 150
        assert [client.finish.reason for client in clients] == ["length"] * 3
        assert [client.token_ids for client in clients] == expected
        assert engine.get_stats()["active"] == 0

    def test_a_conversation_about_an_image_encodes_it_once(self, engine: InferenceEngine) -> None:
        before = engine.get_stats()["images_encoded"]
        ids = reference("mm_input_ids").tolist()
        first_row = ids.index(PATCH)
        prompt = [*ids[: first_row + 1], *ids[first_row + N_ROWS :]]
        options = {"images": [IMAGE], "session_id": "pictures", **GREEDY}
        first = engine.generate(prompt, **options)
        assert first.usage.prompt_tokens == len(prompt) + N_ROWS - 1
        again = engine.generate([*prompt, *first.token_ids, 5], **options)
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 2
        assert engine.get_stats()["images_encoded"] == before + 1
        engine.delete_session("pictures")
