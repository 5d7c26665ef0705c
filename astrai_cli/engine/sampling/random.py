"""Random numbers that depend on a seed and an index alone.

So a draw depends on the logits, the request's seed and the index of the token in
the answer, and on nothing else: not on what else runs in the batch, nor on earlier
draws. Any device can repeat it:

    mix(z):  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9
             z ^= z >> 27; z *= 0x94D049BB133111EB
             z ^= z >> 31                                 (all modulo 2**64)
    uniform(seed, index) = (mix(mix(seed) + (index + 1) * 0x9E3779B97F4A7C15) >> 11) / 2**53

(mix is the finaliser of SplitMix64, Steele, Lea and Flood 2014.)
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same seed and index."""
    return float(_mix((_mix(seed & _MASK) + (index + 1) * _GOLDEN) & _MASK) >> 11) / 2**53


def choice_seed(seed: int, index: int) -> int:
    """The seed of a request's answer number `index`: the request's own for the first one.

    For the others mix(seed + index * 0x9E3779B97F4A7C15) >> 1, modulo 2**64.
    """
    return _mix((seed + index * _GOLDEN) & _MASK) >> 1 if index else seed
