"""Files that are either whole or not there: temporary siblings, locks and digests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CHUNK_BYTES = 2**20
LOCK_POLL_SECONDS = 0.2


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, gone when the block ends.

    Its owner holds a lock on it, so that what a killed process left behind is known
    from what another one is writing: the former is swept here. SIGTERM ends the block
    as SIGINT does.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".partial-{target.name}-"
    for leftover in target.parent.glob(f"{_glob_escape(prefix)}*"):
        _sweep(leftover)
    folder, handle = _make_locked(target.parent, prefix)
    try:
        with _sigterm_raises():
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _glob_escape(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and a handle that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        handle = _try_lock(folder)
        # A sweep may have come between the two calls: then the folder is gone, or going.
        if handle is not None and folder.exists():
            return folder, handle
        if handle is not None:
            os.close(handle)


def _try_lock(path: Path) -> int | None:
    """A handle that holds the lock of an existing file or folder; None where another does."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _sweep(folder: Path) -> None:
    handle = _try_lock(folder)
    if handle is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit, unless the program handles it itself."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def file_lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` against other processes, calling `waiting` while one has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    while (handle := _try_lock(path)) is None:
        waiting()
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_all(paths: Sequence[Path]) -> str:
    """Hex digest of some files, their names included."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Have a file, or a folder's list of names, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have everything under `folder` reach the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)
