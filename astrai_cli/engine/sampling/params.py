"""The bounds of sampling parameters."""

from __future__ import annotations

from astrai_cli.config import INT32_MAX
from astrai_cli.engine.request import SamplingParams
from astrai_cli.errors import InvalidInputError

MAX_TEMPERATURE = 10
MAX_SEED = 2**63 - 1
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100
MAX_PENALTY = 2
MAX_BIAS = 100
MAX_BIASED_TOKENS = 1024


def check_sampling(params: SamplingParams) -> None:
    """Raises InvalidInputError that names the first parameter out of its bounds.

    Whether biased ids are in the vocabulary is for whoever knows its size to check.
    """
    _check_range("temperature", params.temperature, 0, MAX_TEMPERATURE)
    _check_range("top_k", params.top_k, 0, INT32_MAX)
    _check("top_p", params.top_p, 0 < params.top_p <= 1, "more than 0, at most 1")
    _check_range("min_p", params.min_p, 0, 1)
    _check_range(
        "repetition_penalty",
        params.repetition_penalty,
        MIN_REPETITION_PENALTY,
        MAX_REPETITION_PENALTY,
    )
    _check_range("presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_range("frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    if params.seed is not None:
        _check_range("seed", params.seed, 0, MAX_SEED)
    _check_bias(params)


def _check_bias(params: SamplingParams) -> None:
    n = len(params.logit_bias)
    if n > MAX_BIASED_TOKENS:
        raise InvalidInputError(
            f"logit_bias has {n} entries; at most {MAX_BIASED_TOKENS} are taken",
            param="logit_bias",
        )
    if len({token_id for token_id, _ in params.logit_bias}) < n:
        raise InvalidInputError("logit_bias has a token id twice", param="logit_bias")
    for token_id, bias in params.logit_bias:
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise InvalidInputError(
                f"logit_bias of token id {token_id} is {bias}; "
                f"it must be {-MAX_BIAS} to {MAX_BIAS}",
                param="logit_bias",
            )


def _check_range(name: str, value: float, low: float, high: float) -> None:
    _check(name, value, low <= value <= high, f"{low} to {high}")


def _check(name: str, value: float, inside: bool, bounds: str) -> None:
    if not inside:
        raise InvalidInputError(f"{name} is {value}; it must be {bounds}", param=name)
