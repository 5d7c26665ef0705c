"""What every executor must do, checked against a float64 reference on tiny models.

A backend's test module subclasses `ExecutorConformance`, states its tolerances, and
gives the fixture `open_executor`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from bad_steps import BAD_STEPS, HISTORY, MAX_CONTEXT, PAGE_SIZE
from hypothesis import given, settings
from reference_decoder import ReferenceDecoder, relative_error
from step_texts import (
    CELLS,
    Logits,
    Text,
    chunks_of,
    greedy,
    greedy_early,
    random_tokens,
    run,
    run_in_chunks,
    run_together,
    schedules,
    texts,
)
from tiny_models import tiny_gguf

from astrai_cli.errors import InvalidInputError
from backends.base import Executor, LaunchingExecutor, SequenceStep, Step

OpenExecutor = Callable[..., Executor]
"""open_executor(gguf_path, **limits); `limits` are fields of the config's limits group."""

WINDOW = 24
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"context_length": 1024},
    "windows": {
        "n_layers": 3,
        "sliding_window": WINDOW,
        "sliding_window_pattern": (True, False, True),
    },
    "qwen2": {"architecture": "qwen2", "tied": False, "n_heads": 6},
    "qwen3": {"architecture": "qwen3", "n_kv_heads": 1, "head_width": 32},
    "muse": {
        "architecture": "muse-glimmer",
        "n_layers": 5,
        "tied": False,
        "sliding_window": WINDOW,
        "logit_scale": 0.7,
        "logit_cap": 20.0,
    },
}


@dataclass(frozen=True)
class Model:
    """A tiny model file and what its logits should be."""

    path: Path
    reference: ReferenceDecoder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("conformance")
    paths = {name: tiny_gguf(folder, name=name, **fields) for name, fields in MODELS.items()}
    return {name: Model(path, ReferenceDecoder(path)) for name, path in paths.items()}


class ExecutorConformance:
    """The suite. Errors are relative, a row at a time (see `relative_error`)."""

    tolerance: ClassVar[float]
    """Against the reference: what the backend's number types cost."""
    consistency: ClassVar[float]
    """Against the executor's own logits when a text runs alone, in one step where it fits."""

    @pytest.fixture
    def open_executor(self) -> OpenExecutor:
        raise NotImplementedError("each backend's tests give this fixture")

    def check(self, model: Model, text: Text, logits: Logits, first: int = 0) -> None:
        """`logits` are those of the text's rows `first` and on."""
        expected = model.reference.logits(text.tokens)[first : first + len(logits)]
        assert relative_error(logits, expected) < self.tolerance

    def test_info(self, open_executor: OpenExecutor, models: dict[str, Model]) -> None:
        with closing(open_executor(models["llama"].path)) as executor:
            info = executor.info
            assert info.spec == models["llama"].reference.spec
            assert info.max_context == 1024
            assert info.max_step_tokens >= 1
            assert info.bytes_per_cell >= info.spec.kv_values_per_token
            assert info.backend
        with closing(open_executor(models["llama"].path, max_context=100)) as executor:
            assert executor.info.max_context == 100

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("chunk", [1, 7, 64, 100])
    def test_chunks_of_any_size(
        self, open_executor: OpenExecutor, models: dict[str, Model], name: str, chunk: int
    ) -> None:
        with closing(open_executor(models[name].path)) as executor:
            executor.allocate(CELLS)
            [text] = texts([100], CELLS, shuffled=False)
            size = min(chunk, executor.info.max_step_tokens)
            logits = run_in_chunks(executor, CELLS, text, chunks_of(size, 100))
            self.check(models[name], text, logits)

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize(
        ("page_size", "shuffled"), [(1, True), (16, True), (16, False), (CELLS // 8, False)]
    )
    def test_mixed_steps_in_any_cell_order(
        self,
        open_executor: OpenExecutor,
        models: dict[str, Model],
        name: str,
        page_size: int,
        shuffled: bool,
    ) -> None:
        """Decodes beside prefill chunks, some with history and some without."""
        with closing(open_executor(models[name].path)) as executor:
            executor.allocate(CELLS)
            some = texts([41, 33, 60, 50, 64, 16], page_size, shuffled=shuffled)
            steps = [[40, 32, 0, 17, 0, 0], [1, 1, 30, 33, 0, 15], [0, 0, 30, 0, 64, 1]]
            for text, logits in zip(
                some, run_together(executor, page_size, some, steps), strict=True
            ):
                self.check(models[name], text, logits)

    def test_long_context(self, open_executor: OpenExecutor, models: dict[str, Model]) -> None:
        with closing(open_executor(models["llama"].path)) as executor:
            executor.allocate(CELLS)
            [text] = texts([601], 16, shuffled=True)
            size = min(250, executor.info.max_step_tokens)
            logits = run_in_chunks(executor, 16, text, [*chunks_of(size, 600), 1])
            self.check(models["llama"], text, logits)

    def test_windows_hide_what_is_behind_them(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        """Prefill across the window's edge, then decode far beyond it."""
        with closing(open_executor(models["windows"].path)) as executor:
            executor.allocate(CELLS)
            [text] = texts([8 * WINDOW], 1, shuffled=True)
            chunks = [WINDOW - 1, 2, WINDOW, 3 * WINDOW, *[1] * (3 * WINDOW - 1)]
            self.check(models["windows"], text, run_in_chunks(executor, 1, text, chunks))

    def test_the_largest_step(self, open_executor: OpenExecutor, models: dict[str, Model]) -> None:
        with closing(open_executor(models["llama"].path)) as executor:
            executor.allocate(CELLS)
            largest = min(executor.info.max_step_tokens, CELLS // 2)
            for lengths in ([largest], [largest // 2, largest - largest // 2]):
                some = texts(lengths, CELLS // 2, shuffled=False)
                sequences = [text.take(text.left) for text in some]
                for text, logits in zip(some, run(executor, CELLS // 2, *sequences), strict=True):
                    self.check(models["llama"], text, logits)

    def test_only_the_rows_asked_for(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        with closing(open_executor(models["llama"].path)) as executor:
            executor.allocate(CELLS)
            some = texts([20, 20, 20, 20], 16, shuffled=True)
            wanted = [0, 1, 20, 3]
            sequences = [text.take(20, rows) for text, rows in zip(some, wanted, strict=True)]
            outputs = run(executor, 16, *sequences)
            for text, rows, logits in zip(some, wanted, outputs, strict=True):
                self.check(models["llama"], text, logits, first=20 - rows)
            [nothing] = run(executor, 16, SequenceStep(random_tokens(2), 0, some[0].pages, 0))
            assert len(nothing) == 0

    def test_a_shared_prefix(self, open_executor: OpenExecutor, models: dict[str, Model]) -> None:
        """Two texts go on from the same pages in one step."""
        with closing(open_executor(models["llama"].path)) as executor:
            executor.allocate(CELLS)
            first, second = texts([50, 50], 16, shuffled=True)
            second.tokens[:32] = first.tokens[:32]
            second.pages[:2] = first.pages[:2]
            run(executor, 16, first.take(32))
            second.done = 32
            for text, logits in zip(
                (first, second), run(executor, 16, first.take(18), second.take(18)), strict=True
            ):
                self.check(models["llama"], text, logits, first=32)

    def test_positions_can_be_run_again(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        """As after a rejected draft: other tokens at positions that already ran."""
        with closing(open_executor(models["llama"].path)) as executor:
            executor.allocate(CELLS)
            [text] = texts([40], 16, shuffled=True)
            run(executor, 16, text.take(30))
            text.done = 12
            text.tokens[12:] = random_tokens(28, seed=9)
            logits = run(executor, 16, text.take(5))[0]
            self.check(models["llama"], text, logits, first=12)
            self.check(models["llama"], text, run(executor, 16, text.take(23))[0], first=17)

    def test_pages_are_reused(self, open_executor: OpenExecutor, models: dict[str, Model]) -> None:
        with closing(open_executor(models["windows"].path)) as executor:
            executor.allocate(CELLS)
            for seed in range(3):
                some = texts([70, 45], 4, shuffled=True, seed=seed)
                sequences = [text.take(text.left) for text in some]
                for text, logits in zip(some, run(executor, 4, *sequences), strict=True):
                    self.check(models["windows"], text, logits)

    def test_allocate_starts_afresh(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        with closing(open_executor(models["llama"].path)) as executor:
            step = SequenceStep(random_tokens(3), 0, np.array([40], dtype=np.int32))
            with pytest.raises(InvalidInputError, match="page 40 "):
                executor.step(Step([step], 16))
            with pytest.raises(InvalidInputError, match="0 cells"):
                executor.allocate(0)
            for cells in (CELLS, 64, 2 * CELLS):
                executor.allocate(cells)
                [text] = texts([50], 16, shuffled=False, seed=cells)
                self.check(models["llama"], text, run(executor, 16, text.take(50))[0])
            executor.allocate(64)
            with pytest.raises(InvalidInputError, match=r"page 40 .*64 cells"):
                executor.step(Step([step], 16))

    @pytest.mark.parametrize("fault", BAD_STEPS)
    def test_a_bad_step_changes_nothing(
        self, open_executor: OpenExecutor, models: dict[str, Model], fault: str
    ) -> None:
        with closing(open_executor(models["llama"].path, max_context=MAX_CONTEXT)) as executor:
            executor.allocate(CELLS)
            text = replace(HISTORY)
            run(executor, PAGE_SIZE, text.take(20))
            bad, message = BAD_STEPS[fault]
            with pytest.raises(InvalidInputError, match=message):
                executor.step(bad)
            logits = run(executor, PAGE_SIZE, text.take(10))[0]
            self.check(models["llama"], text, logits, first=20)

    def test_a_step_too_long_changes_nothing(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        with closing(open_executor(models["llama"].path)) as executor:
            most = executor.info.max_step_tokens
            executor.allocate(CELLS + most)
            [text] = texts([30], 1, shuffled=True)
            run(executor, 1, text.take(20))
            free = np.arange(CELLS, CELLS + most, dtype=np.int32)
            crowd = [
                SequenceStep(random_tokens(len(pages)), 0, pages)
                for pages in np.split(free, range(512, most, 512))
            ]
            with pytest.raises(InvalidInputError, match=f"{most + 1} tokens.*{most}"):
                executor.step(Step([*crowd, replace(text.take(1), start=20)], 1))
            text.done = 20
            self.check(models["llama"], text, run(executor, 1, text.take(10))[0], first=20)

    def test_greedy_choices_are_those_of_running_alone(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        with closing(open_executor(models["windows"].path)) as executor:
            executor.allocate(CELLS)
            prompts = texts(range(3, 43, 5), 8, shuffled=True)
            together = greedy(executor, 8, prompts)
            assert together == [greedy(executor, 8, [prompt])[0] for prompt in prompts]

    def test_steps_launched_early_go_on_with_tokens_that_only_the_executor_knows(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        with closing(open_executor(models["windows"].path)) as executor:
            if not isinstance(executor, LaunchingExecutor):
                assert not executor.info.max_top_k
                return
            executor.allocate(CELLS)
            prompts = texts(range(3, 43, 5), 8, shuffled=True)
            expected = greedy(executor, 8, prompts)
            assert greedy_early(executor, 8, prompts) == expected
            # A token drawn that there is none of.
            step = Step([SequenceStep(np.array([-9 - 1], np.int32), 0, prompts[0].pages)], 8)
            with pytest.raises(InvalidInputError, match="token id -10 is outside the vocabulary"):
                executor.launch(step)

    def test_any_schedule_gives_what_running_alone_gives(
        self, open_executor: OpenExecutor, models: dict[str, Model]
    ) -> None:
        model = models["windows"]
        with closing(open_executor(model.path)) as executor:
            executor.allocate(CELLS)

            @settings(max_examples=30, deadline=None)
            @given(schedules())
            def check(schedule: tuple[int, list[Text], list[list[int]]]) -> None:
                page_size, some, steps = schedule
                outputs = run_together(executor, page_size, some, steps)
                for text, together in zip(some, outputs, strict=True):
                    self.check(model, text, together)
                    text.done = 0
                    alone = run(executor, page_size, text.take(text.left))[0]
                    assert relative_error(together, alone) < self.consistency

            check()

    def test_closing_twice(self, open_executor: OpenExecutor, models: dict[str, Model]) -> None:
        executor = open_executor(models["llama"].path)
        executor.allocate(CELLS)
        executor.close()
        executor.close()
