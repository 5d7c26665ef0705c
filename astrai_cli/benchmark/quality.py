"""How far one model's predictions are from a reference's on the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scorer = Callable[[Sequence[int]], NDArray[np.float32]]
"""Token ids [T] to the logits after each: float32 [T, vocabulary]."""

# Rows worked on at a time: float64 probabilities of a whole window would fill the memory.
_ROWS = 32


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures over all scored tokens.

    Perplexities are exp of the mean negative log-likelihood of each next token;
    kl is the mean of KL(reference ‖ model) in nats; top1_agreement is the share of
    rows where both put the same token first.
    """

    tokens: int
    perplexity: float
    reference_perplexity: float
    kl: float
    top1_agreement: float


def compare(
    reference: Scorer,
    model: Scorer,
    tokens: Sequence[int],
    window: int,
    progress: Callable[[float], None],
) -> Quality:
    """Score at least two tokens in windows of `window`, calling `progress` with the share done.

    A last window of a single token predicts nothing and is left out.
    """
    tally = QualityTally()
    for start in range(0, len(tokens) - 1, window):
        part = tokens[start : start + window]
        tally.add(np.asarray(part), reference(part), model(part))
        progress((start + len(part)) / len(tokens))
    return tally.result()


class QualityTally:
    """Adds up windows of text; each is scored on its own."""

    def __init__(self) -> None:
        self._rows = 0
        self._targets = 0
        self._loss = 0.0
        self._reference_loss = 0.0
        self._kl = 0.0
        self._agreed = 0

    def add(
        self,
        tokens: NDArray[np.integer],
        reference: NDArray[np.float32],
        logits: NDArray[np.float32],
    ) -> None:
        """Count one window: tokens [T], T >= 2, and both models' logits [T, vocabulary].

        Row t predicts token t + 1; the last row predicts nothing known and counts
        for the distance only.
        """
        for start in range(0, len(tokens), _ROWS):
            rows = slice(start, start + _ROWS)
            self._add_rows(tokens[start + 1 : start + 1 + _ROWS], reference[rows], logits[rows])

    def _add_rows(
        self,
        targets: NDArray[np.integer],
        reference: NDArray[np.float32],
        logits: NDArray[np.float32],
    ) -> None:
        reference_log = _log_softmax(reference)
        model_log = _log_softmax(logits)
        known = np.arange(len(targets))
        self._reference_loss -= float(reference_log[known, targets].sum())
        self._loss -= float(model_log[known, targets].sum())
        self._kl += float((np.exp(reference_log) * (reference_log - model_log)).sum())
        self._agreed += int((reference.argmax(axis=1) == logits.argmax(axis=1)).sum())
        self._rows += len(reference)
        self._targets += len(targets)

    def result(self) -> Quality:
        """The figures so far; at least one window must have been added."""
        return Quality(
            tokens=self._rows,
            perplexity=float(np.exp(self._loss / self._targets)),
            reference_perplexity=float(np.exp(self._reference_loss / self._targets)),
            kl=self._kl / self._rows,
            top1_agreement=self._agreed / self._rows,
        )


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
