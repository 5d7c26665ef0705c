"""Images of prompts: what stands for them in the cache, and their embeddings."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ExecutionError
from astrai_cli.models.image import PreparedImage
from backends.base import EmbeddingSpan, Executor

MAX_KNOWN_IMAGES = 4096


class PromptImage:
    """An image whose rows of embeddings are at a prompt's positions start … start + n_rows - 1.

    The rows are computed when a step first needs one of them, and stay for all answers
    to the prompt. The pixels stay until then, so that what failed can be tried again.
    """

    def __init__(self, prepared: PreparedImage, start: int) -> None:
        self.start = start
        self.n_rows = prepared.n_rows
        self._pixels: NDArray[np.uint8] | None = prepared.pixels
        self._rows: NDArray[np.float32] | None = None

    @property
    def is_encoded(self) -> bool:
        return self._rows is not None

    def is_in(self, start: int, n: int) -> bool:
        """Whether any of its rows are at the n positions from `start` on."""
        return bool(self._positions_in(start, n))

    def encode(self, executor: Executor) -> None:
        """Compute the rows. Raises ExecutionError for unusable ones, and what encode_image does."""
        assert self._pixels is not None
        rows = executor.encode_image(self._pixels)
        shape = (self.n_rows, executor.info.spec.width)
        if rows.shape != shape or not np.isfinite(rows).all():
            raise ExecutionError(
                f"the image's embeddings are {list(rows.shape)}, must be {list(shape)} and finite"
            )
        self._rows, self._pixels = rows, None

    def spans(self, start: int, n: int) -> tuple[EmbeddingSpan, ...]:
        """Its rows at the n positions from `start` on; it is encoded where there are any."""
        positions = self._positions_in(start, n)
        if not positions:
            return ()
        assert self._rows is not None
        rows = self._rows[positions.start - self.start : positions.stop - self.start]
        return (EmbeddingSpan(positions.start - start, rows),)

    def _positions_in(self, start: int, n: int) -> range:
        return range(max(start, self.start), min(start + n, self.start + self.n_rows))


class ImageIdentities:
    """The integers that say which image's which row is at a position.

    Two rows have the same one if their images have the same digest and they are the same
    row of it. All are below 0, so none is a token id, and none is ever given to another
    image. An image that is forgotten, as MAX_KNOWN_IMAGES others were seen since, gets new
    ones: then its rows are computed again. Thread-safe.
    """

    def __init__(self, capacity: int = MAX_KNOWN_IMAGES) -> None:
        self._capacity = capacity
        self._first_by_digest: OrderedDict[bytes, int] = OrderedDict()  # seen last, last
        self._next = -1
        self._lock = threading.Lock()

    def of(self, image: PreparedImage) -> NDArray[np.int64]:
        """int64 [n_rows], one for each row."""
        with self._lock:
            first = self._first_by_digest.get(image.digest)
            if first is None:
                first = self._first_by_digest[image.digest] = self._next
                self._next -= image.n_rows
            self._first_by_digest.move_to_end(image.digest)
            if len(self._first_by_digest) > self._capacity:
                self._first_by_digest.popitem(last=False)
        return np.arange(first, first - image.n_rows, -1)
