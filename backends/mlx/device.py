"""The one thread of the process in which everything of MLX happens.

MLX ties streams and compiled functions to threads. What a thread compiled it frees when it
ends, for which it needs Python's lock; where Python is ending too, that ends the process with
an abort. So this thread never ends: it waits until the process does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, wraps
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _DeviceThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="astrai-mlx", daemon=True)
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            self._run(*self._calls.get())

    def call(self, function: Callable[[], Any]) -> Any:
        if threading.current_thread() is self:
            return function()
        future: Future[Any] = Future()
        self._calls.put((function, future))
        return future.result()

    @staticmethod
    def _run(function: Callable[[], Any], future: Future[Any]) -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)


@cache
def _device_thread() -> _DeviceThread:
    thread = _DeviceThread()
    thread.start()
    return thread


def on_device(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function run in that thread, whoever calls it, and its caller wait for it."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        result: R = _device_thread().call(lambda: function(*args, **options))
        return result

    return call
