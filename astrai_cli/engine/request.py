"""What travels into and out of the engine: requests, pieces of an answer, its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; the defaults are the direct engine API's.

    temperature: 0 picks the likeliest token. top_k: 0 keeps all. seed: None draws one.
    repetition_penalty: over the tokens of prompt and answer; 1 changes nothing.
    presence_penalty, frequency_penalty: over those of the answer; 0 changes nothing.
    logit_bias: pairs of a token id and what is added to its logit.
    `engine.sampling` says in which order they work.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An image for a prompt: the bytes of a JPEG or PNG, and the index of its placeholder."""

    data: bytes = field(repr=False)
    position: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    prompt: token ids, at least one. images: at most one, whose rows of embeddings take
        the place of the one token `<|patch|>` at its position; each row counts as a token
        of the prompt, though for the repetition penalty they all are `<|patch|>`.
    max_tokens: None means up to the context.
    stop: strings that end the answer and are removed from it.
    header_ids: tokens that begin and end a message's header, in which stop strings are not
        looked for.
    stop_token_ids: ids that end it besides the model's own; never shown.
    ignore_eos: go on past the model's own end tokens.
    write_special: write special tokens into the text by their names, but for one that
        ends the answer; else they are no part of it.
    logprobs: how many of the likeliest tokens' log probabilities to tell beside those of
        the generated tokens; None: none at all.
    session_id: the named session it belongs to. A session's requests run one after the
        other; one whose prompt goes on exactly where the last ended runs only the rest.
    timeout: seconds from its arrival after which it ends, with what it has by then.
    drafts: let its next tokens be guessed, where the engine does; no answer depends on it.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    header_ids: tuple[int, int] | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    write_special: bool = False
    logprobs: int | None = None
    session_id: str | None = None
    timeout: float | None = None
    images: tuple[ImageInput, ...] = ()
    drafts: bool = True


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request.

    prompt_tokens counts every row of an image, completion_tokens an end token that was
    generated. cached_tokens of the prompt's did not have to be run. accepted_tokens of the
    answer's had been guessed, and rejected_tokens, which are no part of it, wrongly. These
    three depend on what else ran, so they do not make answers differ.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = field(default=0, compare=False)
    accepted_tokens: int = field(default=0, compare=False)
    rejected_tokens: int = field(default=0, compare=False)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's log probability, and those of the likeliest tokens in its place.

    All are the log-softmax of the model's own logits, before penalties, bias and
    temperature. top: pairs of token id and log probability, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an answer: whole characters of text, and the ids generated since the last.

    Either may be empty: ids whose bytes do not end a character yet, or text held
    back while it could still have become a stop string. logprobs: where asked for, of
    each of the ids but one that ends the answer. prompt: with the first piece, the
    usage when the prompt had been run.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: Usage | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an answer, sent exactly once, after its last piece.

    matched_stop: the stop string that was removed, or None.
    error, error_code: set where reason is "error" (or "cancelled", saying why).
    retry_after: seconds after which trying again may help, where the error knows.
    """

    reason: FinishReason
    usage: Usage
    matched_stop: str | None = None
    error: str | None = None
    error_code: str | None = None
    retry_after: float | None = None


Event = Piece | Finish
