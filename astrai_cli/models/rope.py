"""The angles of rotary position embedding, the same for every backend."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from astrai_cli.models.spec import RopeSpec


def rope_frequencies(rope: RopeSpec) -> NDArray[np.float32]:
    """float32 [dimension / 2]: radians one position adds to each rotated pair.

    Component i turns by base ** (-2 i / dimension) a position (Su et al. 2021,
    arXiv:2104.09864), divided by the linear scale and by Llama 3's factors. They
    are computed in float64 and rounded once.
    """
    exponents = np.arange(0, rope.dimension, 2, dtype=np.float64) / rope.dimension
    frequencies = rope.base**-exponents / rope.scale
    if rope.factors is not None:
        frequencies = frequencies / np.asarray(rope.factors, dtype=np.float64)
    return frequencies.astype(np.float32)
