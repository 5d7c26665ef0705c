"""The worker's outgoing pipe: bounded, and never blocking the thread that writes."""

from __future__ import annotations

import os
import select
import sys
import threading

MAX_BUFFERED_BYTES = 16 * 2**20


def claim_stdout() -> int:
    """A descriptor of the original stdout; file descriptor 1 itself becomes stderr.

    A stray print, of Python or of native code, then cannot break the protocol.
    """
    sys.stdout.flush()
    claimed = os.dup(1)
    os.dup2(2, 1)
    return claimed


class PipeWriter:
    """Writes lines to a pipe at once where there is room; a thread writes what was left over.

    Writing in the caller's thread matters: an executor may hold Python's lock
    through a whole step, and a second thread would get to write only after it.
    """

    def __init__(self, fd: int, max_buffered: int = MAX_BUFFERED_BYTES) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._max_buffered = max_buffered
        self._left = bytearray()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._drain, name="pipe-writer", daemon=True)
        self._thread.start()

    def write(self, data: bytes, *, force: bool = False) -> bool:
        """Send `data` whole and in order; False, and nothing sent, if the buffer is full.

        `force` is for the few small frames that must arrive: it ignores the bound.
        """
        with self._changed:
            if self._closed:
                return False
            if not self._left:
                data = data[self._write_some(data) :]
            elif len(self._left) + len(data) > self._max_buffered and not force:
                return False
            if data:
                self._left += data
                self._changed.notify()
            return True

    def close(self, timeout: float = 5.0) -> None:
        """Wait up to `timeout` seconds for what is left over to be written, then close."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._left, timeout)
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        os.close(self._fd)

    def _write_some(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # The reader is gone, and with it everybody who could want the rest.
            self._closed = True
            self._left.clear()
            return len(data)

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._left)
                if self._closed:
                    return
            poll.poll(1000)
            with self._changed:
                del self._left[: self._write_some(self._left)]
                self._changed.notify_all()
