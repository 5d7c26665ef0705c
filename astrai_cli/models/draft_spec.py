"""What a block draft is, and the `--draft-gguf` file that holds one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError
from astrai_cli.models.architectures import read_draft_layers, tensors_of_layers
from astrai_cli.models.gguf import GGUFFile, can_dequantize
from astrai_cli.models.gguf_header import TensorInfo
from astrai_cli.models.metadata import Metadata
from astrai_cli.models.source import ModelSource
from astrai_cli.models.spec import ModelSpec

DFLASH = "dflash"
MAX_BLOCK = 256


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A DFlash draft: a small decoder that proposes the rest of a block in one pass.

    layers: its own decoder's numbers; embedding and head are the target's. taps: the
    target's layers whose outputs it reads, ascending. max_block: tokens of a block, the last
    accepted one and masks. mask_id: the token that stands for one to propose.
    """

    layers: ModelSpec
    taps: tuple[int, ...]
    max_block: int
    mask_id: int

    @property
    def max_tokens(self) -> int:
        """The most tokens that one pass proposes."""
        return self.max_block - 1


class DraftFile(GGUFFile):
    """A GGUF file of a block draft: its tensors are exactly those of its spec."""

    spec: DraftSpec

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.spec = read_draft_spec(self.metadata, path.stem)
            self._check_tensors()
        except BaseException:
            self.close()
            raise

    def get(self, name: str) -> NDArray[np.float32]:
        """A tensor of `draft_tensors` as float32: a matrix as [out, in], a vector as [n].

        Raises ModelFileError for an unknown name and for values that are not finite.
        """
        return self.finite(name)

    def check_target(self, target: ModelSource) -> None:
        """Raises ModelFileError where the draft is not one of this target."""
        spec, layers = target.spec, self.spec.layers
        self._require("is {} wide", layers.width, spec.width)
        self._require("has a vocabulary of {}", layers.vocab_size, spec.vocab_size)
        if self.spec.taps[-1] >= spec.n_layers - 1:
            raise ModelFileError(
                f"{self.path}: the draft taps the input of layer {self.spec.taps[-1] + 1}; "
                f"the target's last is {spec.n_layers - 1}"
            )
        tokenizer = target.tokenizer()
        for token_id, token in enumerate(self.metadata.texts("tokenizer.ggml.tokens")):
            theirs = tokenizer.id_to_token(token_id)
            if theirs is not None and theirs != token:
                raise ModelFileError(
                    f"{self.path}: token {token_id} of the draft is {token[:64]!r}, "
                    f"and the target's is {theirs[:64]!r}"
                )

    def _require(self, what: str, own: int, target: int) -> None:
        if own != target:
            raise ModelFileError(
                f"{self.path}: the draft {what.format(own)}, and the target {what.format(target)}"
            )

    def _check_tensors(self) -> None:
        expected = draft_tensors(self.spec)
        for name, shape in expected.items():
            found = self.tensor(name)
            self._check_tensor(found, shape)
        for name in self.tensors:
            if name not in expected:
                raise ModelFileError(f"{self.path}: tensor {name!r} is not part of a {DFLASH!r}")

    def _check_tensor(self, tensor: TensorInfo, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise ModelFileError(
                f"{self.path}: tensor {tensor.name!r} has the shape {list(tensor.shape)}, "
                f"must be {list(shape)}"
            )
        if not can_dequantize(tensor.type):
            raise ModelFileError(
                f"{self.path}: tensor {tensor.name!r} is stored as {tensor.type.name}, "
                "which cannot be read"
            )


def read_draft_spec(metadata: Metadata, fallback_name: str) -> DraftSpec:
    """The spec that the metadata describe; raises ModelFileError where they cannot be right."""
    if metadata.text("general.architecture") != DFLASH:
        raise metadata.error("general.architecture", f"{DFLASH!r}: a block draft")
    layers = read_draft_layers(metadata, DFLASH, fallback_name)
    inputs = metadata.integers(f"{DFLASH}.target_layers").tolist()
    if not inputs or inputs != sorted(set(inputs)) or inputs[0] < 1 or len(inputs) > 64:
        raise metadata.error(f"{DFLASH}.target_layers", "1 to 64 ascending layers, from 1 on")
    return DraftSpec(
        layers=layers,
        taps=tuple(layer - 1 for layer in inputs),
        max_block=metadata.integer(f"{DFLASH}.block_size", 2, MAX_BLOCK),
        mask_id=metadata.integer("tokenizer.ggml.mask_token_id", 0, layers.vocab_size - 1),
    )


def draft_tensors(spec: DraftSpec) -> Mapping[str, tuple[int, ...]]:
    """The name and shape of every tensor of a draft, in the order they are used."""
    width = spec.layers.width
    return {
        "fc.weight": (width, len(spec.taps) * width),
        "enc.output_norm.weight": (width,),
        **tensors_of_layers(spec.layers),
        "output_norm.weight": (width,),
    }


@contextmanager
def open_draft(target: ModelSource, draft: Path | None) -> Iterator[DraftFile | None]:
    """The draft in the file `draft`; None where none is named.

    Raises ModelFileError, also for a draft of another model.
    """
    if draft is None:
        yield None
        return
    with DraftFile.open(draft) as file:
        file.check_target(target)
        yield file
