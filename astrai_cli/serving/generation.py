"""What the requests of all protocols have in common that ask for an answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astrai_cli.config import INT32_MAX
from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling.params import (
    MAX_BIAS,
    MAX_BIASED_TOKENS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MIN_REPETITION_PENALTY,
)
from astrai_cli.engine.sessions import MAX_ID_LENGTH
from astrai_cli.engine.stops import MAX_STOP_CHARS, MAX_STOPS
from astrai_cli.serving.body import Body, wrap

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[
    list[StopString], wrap(str, lambda stop: [stop] if stop else []), Field(max_length=16)
]
TokenLimit = Annotated[int, Field(ge=1, le=INT32_MAX)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
"""A token id as a key of a JSON object."""

Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
SessionId = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]


class GenerationBody(Body):
    """How an answer is drawn, where it ends, how it is sent and which session it is of.

    Every protocol takes all of these, those that its reference lacks too.
    """

    model: str | None = None
    stream: bool = False
    session_id: SessionId | None = None

    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0, le=INT32_MAX)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    repetition_penalty: float = Field(1.0, ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)
    presence_penalty: float = Field(0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    frequency_penalty: float = Field(0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=MAX_BIASED_TOKENS)] = {}
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOPS)] = []
    ignore_eos: bool = False

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            # The protocol's seeds may be negative, the engine's may not.
            seed=None if self.seed is None else self.seed % 2**63,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple((int(key), bias) for key, bias in self.logit_bias.items()),
        )
