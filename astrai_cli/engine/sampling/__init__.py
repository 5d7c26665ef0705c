"""Drawing the next token of an answer.

The order is fixed, and each stage takes what the one before it left:

1. the model's logits; log probabilities, where asked for, are theirs alone;
2. repetition penalty, over the tokens of prompt and answer;
3. presence and frequency penalty, over those of the answer;
4. logit bias;
5. at temperature 0 the largest logit, of equal ones the lowest id; otherwise
   temperature, top-k, top-p, min-p, softmax, and a draw.
"""

from astrai_cli.engine.sampling.filters import (
    BaseSamplingStrategy,
    Candidates,
    MinPStrategy,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
)
from astrai_cli.engine.sampling.logprobs import check_logprobs, token_logprob
from astrai_cli.engine.sampling.params import MAX_SEED, check_sampling
from astrai_cli.engine.sampling.penalties import (
    BaseLogitStrategy,
    LogitBiasStrategy,
    OccurrencePenaltyStrategy,
    RepetitionPenaltyStrategy,
)
from astrai_cli.engine.sampling.pipeline import SamplingPipeline, sample
from astrai_cli.engine.sampling.random import choice_seed, uniform

__all__ = [
    "MAX_SEED",
    "BaseLogitStrategy",
    "BaseSamplingStrategy",
    "Candidates",
    "LogitBiasStrategy",
    "MinPStrategy",
    "OccurrencePenaltyStrategy",
    "RepetitionPenaltyStrategy",
    "SamplingPipeline",
    "TemperatureStrategy",
    "TopKStrategy",
    "TopPStrategy",
    "check_logprobs",
    "check_sampling",
    "choice_seed",
    "sample",
    "token_logprob",
    "uniform",
]
