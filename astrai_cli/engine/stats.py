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
        self._finished: Counter[FinishReason] = Counter()

    def record_step(self, seconds: float, n_prefilled: int, n_decoded: int) -> None:
        self._steps += 1
        self._step_seconds += seconds
        self._last_step_seconds = seconds
        self._tokens_prefilled += n_prefilled
        self._tokens_decoded += n_decoded

    def record_finish(self, reason: FinishReason) -> None:
        self._finished[reason] += 1

    def as_dict(self) -> dict[str, Any]:
        """Times in seconds; tokens are those run through the model."""
        return {
            "uptime_seconds": time.monotonic() - self._started,
            "steps": self._steps,
            "step_seconds_mean": self._step_seconds / self._steps if self._steps else 0.0,
            "step_seconds_last": self._last_step_seconds,
            "tokens_prefilled": self._tokens_prefilled,
            "tokens_decoded": self._tokens_decoded,
            "requests_finished": {
                reason: self._finished[reason] for reason in get_args(FinishReason)
            },
        }
