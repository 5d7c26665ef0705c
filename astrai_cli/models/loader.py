"""Fills a PyTorch decoder from a model's weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from astrai_cli.models.decoder import Decoder
from astrai_cli.models.weights import TensorSource


def load_decoder(weights: TensorSource) -> Decoder:
    """A decoder with float32 weights, held in memory once.

    Raises ModelFileError for values that are not finite.
    """
    with torch.device("meta"):
        decoder = Decoder(weights.spec)
    names = set(decoder.state_dict())
    if weights.spec.tied_head:
        names.remove("output.weight")
    state = {name: _tensor(weights, name) for name in names}
    state.setdefault("output.weight", state["token_embd.weight"])
    decoder.load_state_dict(state, assign=True)
    return decoder.requires_grad_(False).eval()


def _tensor(weights: TensorSource, name: str) -> Tensor:
    # A tensor stored as float32 may be a read-only view of the file, which may be closed.
    return torch.from_numpy(np.require(weights.get(name), requirements="W"))
