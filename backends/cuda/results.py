"""What a step gives, on its way to the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from astrai_cli.errors import ExecutionError
from backends.base import Step, StepOutput
from backends.cuda.inputs import upload
from backends.cuda.sampling import draw_tokens
from backends.packing import split_rows


class RunningStep:
    """A step on the device. drawn: the tokens of its draws, int32 [draws]."""

    def __init__(self, logits: Tensor, step: Step) -> None:
        """Queue the draws, and one copy of their ids and of the other rows.

        logits: float32 [sum of logit_rows, vocabulary]; may change once this returns.
        """
        self.drawn = torch.zeros(0, dtype=torch.int32, device=logits.device)
        others = logits
        if draws := step.draws:
            order = upload(np.concatenate(split_rows(step)), logits.device)
            self.drawn = draw_tokens(logits[order[: len(draws)]], draws)
            others = logits[order[len(draws) :]]
        self._shape = others.shape
        words = torch.cat([self.drawn, others.view(torch.int32).flatten()])
        self._words = words.to("cpu", non_blocking=True)
        self._copied: torch.Event | None = None
        if logits.device.type == "cuda":
            self._copied = torch.Event("cuda")
            self._copied.record()

    def result(self) -> StepOutput:
        """Wait for the copy: the one place of a step where the host waits for the device."""
        try:
            if self._copied is not None:
                self._copied.synchronize()
            words = self._words.numpy()
        except RuntimeError as error:
            raise failure(error) from error
        n_draws = len(self.drawn)
        rows = words[n_draws:].view(np.float32).reshape(self._shape)
        return StepOutput(rows, words[:n_draws].tolist())


def failure(error: RuntimeError) -> ExecutionError:
    """What to raise for an error of PyTorch; CUDA's go on with hints for developers."""
    first, *_ = [*str(error).splitlines(), ""]
    return ExecutionError(f"the cuda executor failed: {first}")
