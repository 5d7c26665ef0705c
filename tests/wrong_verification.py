"""A rule of acceptance that is not exact, which tests of distributions must notice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.generation import GenerationTask


class Redrawn(GenerationTask):
    """A wrong rule: where a guess is refused, another token is drawn from all of them."""

    _end_of_draft = 0

    def draft(self, token_ids: NDArray[np.int32]) -> None:
        super().draft(token_ids)
        self._end_of_draft = self.n_known + len(token_ids)

    def _sample(self, logits: NDArray[np.float32]) -> int:
        place = self.n_known
        token_id = super()._sample(logits)
        if place >= self._end_of_draft or self.history[place] == token_id:
            return token_id
        return self._pipeline.sample(logits, place + 1000)
