"""What lets a host wait for a GPU, counted on the processor."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class HostWaits(TorchFunctionMode):
    """Counts what lets a host wait for a GPU, by name."""

    METHODS = (
        *("cpu", "numpy", "item", "tolist", "nonzero", "__bool__", "__int__", "__float__"),
        *("__index__", "__contains__", "__array__", "masked_select", "unique", "equal"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._operators = _WaitingOperators(self.found)

    def __enter__(self) -> HostWaits:
        self._operators.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operators.__exit__(*error)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in self.METHODS:
            self.found[name] += 1
        return function(*args, **(kwargs or {}))


class _WaitingOperators(TorchDispatchMode):
    """Those whose result's size, or value, the host must know."""

    OPERATORS = re.compile(
        r"aten\.(_local_scalar_dense|nonzero|masked_select|_?unique|equal|is_nonzero|"
        r"repeat_interleave\.Tensor|bincount|_assert_async)"
    )

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        by_mask = name.startswith(("aten.index.", "aten.index_put")) and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        if by_mask or self.OPERATORS.match(name):
            self._found[name] += 1
        return function(*args, **(kwargs or {}))
