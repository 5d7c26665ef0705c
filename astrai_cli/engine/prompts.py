"""From a request to the positions that the model runs: checked, with its image in place.

This is done in the thread that a request arrives in, so that decoding an image keeps
no step waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.cache.base import Identity
from astrai_cli.engine.images import ImageIdentities, PromptImage
from astrai_cli.engine.request import GenerationRequest, ImageInput
from astrai_cli.engine.stops import check_stop_ids
from astrai_cli.errors import ContextNeed, ContextOverflowError, InvalidInputError
from astrai_cli.models.image import PATCH_TOKEN, PreparedImage, prepare_image
from astrai_cli.models.text import TextModel
from backends.base import ExecutorInfo

MAX_IMAGES = 1

ImageSource = bytes | str | Path
"""The bytes of a JPEG or PNG, or the path of one."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as it is run.

    ids: int32 [positions]; those of an image's rows are its placeholder's. identity: what
    is at each position, an image's rows included. image: None where there is none.
    """

    ids: NDArray[np.int32]
    identity: Identity
    image: PromptImage | None = None

    @classmethod
    def of_ids(cls, token_ids: Sequence[int]) -> PreparedPrompt:
        """A prompt without an image."""
        ids = np.array(token_ids, dtype=np.int32)
        return cls(ids, ids)

    def __len__(self) -> int:
        return len(self.ids)


class PromptPreparer:
    """Prepares the requests to one model; safe to use from many threads."""

    def __init__(self, info: ExecutorInfo, text: TextModel, max_image_bytes: int) -> None:
        self._info = info
        self._tokenizer = text.tokenizer
        self._max_image_bytes = max_image_bytes
        self._identities = ImageIdentities()

    def place(
        self, token_ids: Sequence[int], sources: Sequence[ImageSource]
    ) -> tuple[ImageInput, ...]:
        """Images at the placeholders of a prompt, in their order.

        Raises InvalidInputError where there is not one for each, and for a file that cannot
        be read.
        """
        if not sources:
            return ()
        patch_id = self._patch_id()
        places = [place for place, token_id in enumerate(token_ids) if token_id == patch_id]
        if len(places) != len(sources):
            raise InvalidInputError(
                f"the prompt has {PATCH_TOKEN} {len(places)} times for {len(sources)} images; "
                "it must stand once for each",
                param="images",
            )
        return tuple(
            ImageInput(self._read(source), place)
            for source, place in zip(sources, places, strict=True)
        )

    def prepare(self, request: GenerationRequest) -> tuple[PreparedPrompt, int]:
        """A request's prompt, and how many positions it may come to use.

        Raises InvalidInputError for what is out of bounds and for an image that cannot be
        used, ContextOverflowError for what the context cannot hold.
        """
        if request.timeout is not None and not request.timeout > 0:
            raise InvalidInputError(
                f"timeout is {request.timeout}; it must be more than 0 seconds", param="timeout"
            )
        if request.max_tokens is not None and request.max_tokens < 1:
            raise InvalidInputError(
                f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens"
            )
        check_stop_ids(request.stop_token_ids)
        self._check_ids("stop_token_ids", request.stop_token_ids)
        biased = [token_id for token_id, _ in request.sampling.logit_bias]
        self._check_ids("logit_bias", biased)
        answer = request.max_tokens or 1
        prompt = self.prepare_prompt(request.prompt, request.images, answer)
        n_positions = self._info.max_context
        return prompt, n_positions if request.max_tokens is None else len(prompt) + answer

    def prepare_prompt(
        self, token_ids: Sequence[int], images: Sequence[ImageInput] = (), answer: int = 0
    ) -> PreparedPrompt:
        """A prompt alone, beside which `answer` tokens fit the context. Raises as prepare does."""
        if len(token_ids) == 0:
            raise InvalidInputError("the prompt is empty; it must have a token", param="prompt")
        self._check_ids("prompt", token_ids)
        if not images:
            self._check_room(len(token_ids), answer)
            return PreparedPrompt.of_ids(token_ids)
        if len(images) > MAX_IMAGES:
            raise InvalidInputError(
                f"the request has {len(images)} images, of at most {MAX_IMAGES}", param="images"
            )
        place = images[0].position
        self._check_place(token_ids, place)
        prompt = self._expand(token_ids, place, self._decode(images[0].data))
        self._check_room(len(prompt), answer)
        return prompt

    def _read(self, source: ImageSource) -> bytes:
        if isinstance(source, bytes):
            return source
        try:
            with Path(source).open("rb") as file:
                return file.read(self._max_image_bytes + 1)
        except OSError as error:
            raise InvalidInputError(
                f"{source}: cannot be read: {error.strerror}", param="images"
            ) from error

    def _expand(self, token_ids: Sequence[int], place: int, image: PreparedImage) -> PreparedPrompt:
        """The prompt with an image's rows in the place of its placeholder."""
        ids = np.array(token_ids, dtype=np.int32)
        before, after = ids[:place], ids[place + 1 :]
        rows = np.full(image.n_rows, ids[place])
        return PreparedPrompt(
            np.concatenate([before, rows, after]),
            np.concatenate([before, self._identities.of(image), after]),
            PromptImage(image, place),
        )

    def _decode(self, data: bytes) -> PreparedImage:
        if len(data) > self._max_image_bytes:
            raise InvalidInputError(
                f"the image has more bytes than max_image_bytes, {self._max_image_bytes}",
                param="images",
            )
        assert self._info.vision is not None
        return prepare_image(data, self._info.vision, self._info.max_vision_patches)

    def _patch_id(self) -> int:
        """The id of the token that stands for an image; raises where there can be no images."""
        patch_id: int | None = self._tokenizer.token_to_id(PATCH_TOKEN)
        if self._info.vision is None or patch_id is None:
            what = "vision tower" if self._info.vision is None else f"token {PATCH_TOKEN}"
            raise InvalidInputError(f"this model sees no images: it has no {what}", param="images")
        return patch_id

    def _check_place(self, token_ids: Sequence[int], place: int) -> None:
        patch_id = self._patch_id()
        if not 0 <= place < len(token_ids):
            raise InvalidInputError(
                f"an image is at {place} of the prompt's {len(token_ids)} tokens", param="images"
            )
        if token_ids[place] != patch_id:
            raise InvalidInputError(
                f"an image is at token {token_ids[place]} of the prompt; "
                f"it must be at {PATCH_TOKEN}, {patch_id}",
                param="images",
            )

    def _check_room(self, n_prompt: int, n_answer: int) -> None:
        need = ContextNeed(n_prompt, n_answer, self._info.max_context)
        ContextOverflowError.check(need, param="prompt")

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        last = self._info.spec.vocab_size - 1
        for token_id in (min(token_ids), max(token_ids)) if len(token_ids) else ():
            if not 0 <= token_id <= last:
                raise InvalidInputError(
                    f"{name} has token id {token_id}; ids go from 0 to {last}", param=name
                )
