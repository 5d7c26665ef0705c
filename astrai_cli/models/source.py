"""Where models come from: GGUF files and Hugging Face folders, behind one interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from astrai_cli.closing import Closing
from astrai_cli.errors import ModelFileError
from astrai_cli.files import sha256_of_all
from astrai_cli.models import hf_text, tokenizer
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.hf import HfFolder, HfVision, is_hf_folder
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens
from astrai_cli.models.vision_spec import VisionFile, VisionSpec
from astrai_cli.models.weights import TensorSource, Weights


def open_source(path: Path) -> ModelSource:
    """Open a model and check it. Raises ModelFileError."""
    return HfSource(path) if is_hf_folder(path) else GGUFSource(path)


@contextmanager
def open_vision(model: ModelSource, mmproj: Path | None) -> Iterator[VisionSource | None]:
    """The vision tower in the file `mmproj`, else the model's own; None where it has none.

    Raises ModelFileError, also for a tower of another model.
    """
    if mmproj is None:
        yield model.vision()
        return
    with VisionFile.open(mmproj) as tower:
        if tower.spec.text_width != model.spec.width:
            raise ModelFileError(
                f"{mmproj}: the vision tower gives rows of {tower.spec.text_width}, "
                f"and the text model takes {model.spec.width}"
            )
        yield tower


def model_name(path: Path) -> str:
    """What people call the model: the file's name without its suffix, or the folder's."""
    return path.name.removesuffix(".gguf")


class VisionSource(Protocol):
    """Where a tower's weights come from: a `VisionFile`, or a folder of another format."""

    @property
    def spec(self) -> VisionSpec: ...

    def get(self, name: str) -> NDArray[np.float32]:
        """A tensor of `vision_tensors`; raises ModelFileError."""


class ModelSource(Closing):
    """An open model. Close it, or use it in a `with`.

    kind: of its files. weights: of the decoder. files: all that the model is made of.
    pre_tokenizer: what the files call it, where they name it. Every method raises
    ModelFileError for what cannot be right.
    """

    kind: Literal["gguf", "hf"]
    spec: ModelSpec
    weights: TensorSource
    files: Sequence[Path]
    pre_tokenizer: str | None = None

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Hex digest of all that the model is made of."""

    @abstractmethod
    def stored_tensors(self) -> Iterator[tuple[str, int, int]]:
        """The type, the number of values and the bytes of each tensor in the files."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @abstractmethod
    def special_tokens(self) -> SpecialTokens: ...

    @abstractmethod
    def chat_template(self) -> str | None:
        """The model's own Jinja template, where it has one."""

    @abstractmethod
    def vision(self) -> VisionSource | None:
        """The vision tower that comes with the model."""

    @abstractmethod
    def close(self) -> None: ...


class GGUFSource(ModelSource):
    """A GGUF file of a decoder; towers come in files of their own."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self._file = ModelFile.open(path)
        self.spec = self._file.spec
        self.weights = Weights(self._file)
        self.files = [path]
        self.pre_tokenizer = self._file.metadata.text(tokenizer.PRE_KEY)

    @property
    def sha256(self) -> str:
        return self._file.sha256

    def stored_tensors(self) -> Iterator[tuple[str, int, int]]:
        for tensor in self._file.tensors.values():
            yield tensor.type.name, tensor.n_values, tensor.n_bytes

    def tokenizer(self) -> Tokenizer:
        return tokenizer.build_tokenizer(self._file.metadata)

    def special_tokens(self) -> SpecialTokens:
        return tokenizer.read_special_tokens(self._file.metadata)

    def chat_template(self) -> str | None:
        return tokenizer.read_chat_template(self._file.metadata)

    def vision(self) -> None:
        return None

    def close(self) -> None:
        self._file.close()


class HfSource(ModelSource):
    """A Hugging Face folder."""

    kind = "hf"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = HfFolder(path)
        self.spec = self._folder.spec
        self.weights = self._folder
        texts = [path / name for name in hf_text.FILES]
        self.files = [*self._folder.files, *(file for file in texts if file.is_file())]

    @property
    def sha256(self) -> str:
        return sha256_of_all(self.files)

    def stored_tensors(self) -> Iterator[tuple[str, int, int]]:
        return self._folder.stored_tensors()

    def tokenizer(self) -> Tokenizer:
        return hf_text.read_tokenizer(self._path / hf_text.TOKENIZER_NAME)

    def special_tokens(self) -> SpecialTokens:
        return hf_text.read_special_tokens(self._path, self._folder.config, self.tokenizer())

    def chat_template(self) -> str | None:
        return hf_text.read_chat_template(self._path)

    def vision(self) -> HfVision | None:
        return self._folder.vision()

    def close(self) -> None:
        self._folder.close()
