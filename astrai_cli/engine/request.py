"""What travels into and out of the engine: requests, pieces of an answer, its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; the defaults are the direct engine API's.

    temperature: 0 picks the likeliest token. top_k: 0 keeps all. seed: None draws one.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    prompt: token ids, at least one. max_tokens: None means up to the context.
    stop: strings that end the answer and are removed from it.
    stop_token_ids: ids that end it besides the model's own; never shown.
    ignore_eos: go on past the model's own end tokens.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; completion_tokens counts an end token that was generated."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an answer: whole characters of text, and the ids generated since the last.

    Either may be empty: ids whose bytes do not end a character yet, or text held
    back while it could still have become a stop string.
    """

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an answer, sent exactly once, after its last piece.

    matched_stop: the stop string that was removed, or None.
    error, error_code: set where reason is "error" (or "cancelled", saying why).
    """

    reason: FinishReason
    usage: Usage
    matched_stop: str | None = None
    error: str | None = None
    error_code: str | None = None


Event = Piece | Finish
