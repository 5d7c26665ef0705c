"""What the engine has done so far, in counters."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, get_args

from astrai_cli.engine.request import FinishReason


class EngineStats:
    """Counters, written by the engine thread; a reader may see them between two writes."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = 0
        self._step_seconds = 0.0
        self._last_step_seconds = 0.0
        self._tokens_prefilled = 0
        self._tokens_decoded = 0
        self._tokens_reused = 0
        self._preemptions = 0
        self._drafts = 0
        self._tokens_proposed = 0
        self._tokens_accepted = 0
        self._images_encoded = 0
        self._image_seconds = 0.0
        self._finished: Counter[FinishReason] = Counter()
        self._n_run = 0
        self._run_seconds = 0.0

    def record_step(self, seconds: float, n_prefilled: int, n_decoded: int) -> None:
        self._steps += 1
        self._step_seconds += seconds
        self._last_step_seconds = seconds
        self._tokens_prefilled += n_prefilled
        self._tokens_decoded += n_decoded

    def record_reuse(self, n_tokens: int) -> None:
        """Tokens whose keys and values were there already."""
        self._tokens_reused += n_tokens

    def record_draft(self, n_proposed: int, n_accepted: int) -> None:
        """A draft of n_proposed tokens was checked, beside the token that any step has."""
        self._drafts += 1
        self._tokens_proposed += n_proposed
        self._tokens_accepted += n_accepted
        self._tokens_decoded += n_accepted

    def record_preemption(self) -> None:
        self._preemptions += 1

    def record_image(self, seconds: float) -> None:
        """An image's embeddings were computed, which no step's seconds include."""
        self._images_encoded += 1
        self._image_seconds += seconds

    def record_finish(self, reason: FinishReason, seconds_run: float | None) -> None:
        """seconds_run: from its first start to its end; None for a request that never ran."""
        self._finished[reason] += 1
        if seconds_run is not None:
            self._n_run += 1
            self._run_seconds += seconds_run

    def seconds_to_a_finish(self, n_active: int) -> float:
        """When the next of n_active requests may end, by the mean of those before; at least 1."""
        mean = self._run_seconds / self._n_run if self._n_run else 0.0
        return max(1.0, mean / max(1, n_active))

    def as_dict(self) -> dict[str, Any]:
        """Times in seconds; tokens are those run through the model, and those reused instead.

        Of guessed tokens only those that were right count as decoded; the accepted length is
        the mean of a draft's tokens that were right. The hit rate is the part of all prompts'
        tokens that was reused.
        """
        n_prompt = self._tokens_reused + self._tokens_prefilled
        return {
            "uptime_seconds": time.monotonic() - self._started,
            "steps": self._steps,
            "step_seconds_total": self._step_seconds,
            "step_seconds_mean": self._step_seconds / self._steps if self._steps else 0.0,
            "step_seconds_last": self._last_step_seconds,
            "tokens_prefilled": self._tokens_prefilled,
            "tokens_decoded": self._tokens_decoded,
            "tokens_reused": self._tokens_reused,
            "prefix_hit_rate": self._tokens_reused / n_prompt if n_prompt else 0.0,
            "drafts": self._drafts,
            "tokens_proposed": self._tokens_proposed,
            "tokens_accepted": self._tokens_accepted,
            "accepted_length_mean": self._tokens_accepted / self._drafts if self._drafts else 0.0,
            "preemptions": self._preemptions,
            "images_encoded": self._images_encoded,
            "image_seconds_total": self._image_seconds,
            "requests_finished": {
                reason: self._finished[reason] for reason in get_args(FinishReason)
            },
        }
