"""Work of one shape, which a GPU launches as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from backends.cuda import kernels
from backends.cuda.inputs import Group, Layout, StepTensors, staged

Run = Callable[[StepTensors, Sequence[Group]], Tensor]

# Graphs need what they call compiled and loaded before they are captured.
_WARM_UPS = 3


class Prepared:
    """Runs layouts of one shape, whose integers go to one place of the device.

    Once it is captured it is a CUDA graph.
    """

    def __init__(self, run: Run, buffer: Tensor) -> None:
        """run: of what differs from layout to layout it reads the tensors alone.

        buffer: int32, as long as the longest of the layouts; others may share it.
        """
        self._run = run
        self._buffer = buffer
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output = torch.empty(0)

    def load(self, layout: Layout) -> StepTensors:
        """The layout's tensors; the copy is under way when this returns."""
        integers = layout.integers()
        source = staged(integers, self._buffer.device)
        self._buffer[: len(integers)].copy_(source, non_blocking=True)
        return StepTensors.of(self._buffer, layout)

    def run(self, inputs: StepTensors, groups: Sequence[Group]) -> Tensor:
        """What `run` gives, of tensors that were loaded last; valid until the next run."""
        if self._graph is None:
            return self._run(inputs, groups)
        self._graph.replay()
        return self._output

    def capture(self, idle: Layout, memory: Any) -> Any:
        """Compile and load what it runs, and capture it; the memory that graphs may share.

        idle: a layout of the shape, which changes nothing. memory: that of another graph, or
        None.
        """
        for _ in range(_WARM_UPS):
            inputs = self.load(idle)
            self._run(inputs, idle.groups)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            self._output = self._run(inputs, idle.groups)
        self._graph = graph
        return graph.pool()


def capture_all(prepared: Iterable[tuple[Prepared, Layout]]) -> None:
    """Capture each with its idle layout, in one memory. They come with the largest first.

    The others fit into its memory.
    """
    memory = None
    for each, idle in prepared:
        memory = each.capture(idle, memory)


def can_capture(device: torch.device) -> bool:
    """Whether there are graphs: on a GPU, where nothing but kernels needs to be launched."""
    return device.type == "cuda" and kernels.available(device)
