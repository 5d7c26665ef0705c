"""What the inputs of each linear map look like on ordinary text, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from astrai_cli.models.decoder import Block, Rotation
from astrai_cli.models.spec import ModelSpec
from backends.cpu.rounding import InputStatistics

WINDOWS = 4
WINDOW_TOKENS = 512


def calibration_tokens(tokenizer: Tokenizer, spec: ModelSpec) -> NDArray[np.int64]:
    """int64 [windows, tokens]: our own calibration text, cut into windows the model can take."""
    text = files("backends.cpu").joinpath("calibration.txt").read_text(encoding="utf-8")
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids[: WINDOWS * WINDOW_TOKENS])
    length = min(WINDOW_TOKENS, spec.context_length, len(ids))
    windows = len(ids) // length
    return ids[: windows * length].reshape(windows, length)


class Calibration:
    """The residual stream of the calibration text, carried from block to block in float32."""

    def __init__(self, h: Tensor, spec: ModelSpec, frequencies: Tensor) -> None:
        """h: float32 [windows, tokens, width], the embeddings."""
        self._windows, self._length, width = h.shape
        self._h = h.reshape(-1, width)
        self._spec = spec
        self._positions = torch.arange(self._length).repeat(self._windows)
        self._rotation = Rotation.at(self._positions, frequencies)

    @torch.inference_mode()
    def run(self, block: Block) -> dict[str, InputStatistics]:
        """Advance through a float32 block; the inputs its linear maps met, by module name."""
        with _watch(block) as statistics:
            self._h = block(self._h, self._positions, self._rotation, self._attend)
        return statistics

    @torch.inference_mode()
    def run_head(self, norm: nn.Module) -> InputStatistics:
        """The inputs the head meets, behind its norm."""
        statistics = InputStatistics()
        statistics.add(norm(self._h))
        return statistics

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
        distance = torch.arange(self._length)[:, None] - torch.arange(self._length)
        window = self._spec.windows[layer] or self._length
        q, k, v = (self._by_window(x) for x in (q, k, v))
        output = nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=(distance >= 0) & (distance < window),
            scale=self._spec.attention_scale,
            enable_gqa=True,
        )
        return output.transpose(1, 2).reshape(-1, output.shape[1], 1, output.shape[3])

    def _by_window(self, x: Tensor) -> Tensor:
        """[windows * tokens, heads, 1, D] as [windows, heads, tokens, D]."""
        return x.view(self._windows, self._length, *x.shape[1::2]).transpose(1, 2)


@contextmanager
def _watch(block: Block) -> Iterator[dict[str, InputStatistics]]:
    """Counts in the inputs of a block's linear maps while it runs."""
    linears = {n: m for n, m in block.named_modules() if isinstance(m, nn.Linear)}
    statistics = {name: InputStatistics() for name in linears}
    hooks = [
        linear.register_forward_pre_hook(
            lambda _module, args, name=name: statistics[name].add(args[0])
        )
        for name, linear in linears.items()
    ]
    try:
        yield statistics
    finally:
        for hook in hooks:
            hook.remove()
