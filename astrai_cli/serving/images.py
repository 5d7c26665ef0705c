"""The images of a request: where in the prompt they stand, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence

from astrai_cli.engine.prompts import MAX_IMAGES
from astrai_cli.engine.request import ImageInput
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.image import PATCH_TOKEN
from astrai_cli.serving.body import UNSUPPORTED
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.messages import ChatMessage, ImagePart


def check_images(messages: Sequence[ChatMessage], max_patches: int) -> list[ImagePart]:
    """The images of a conversation, which is at most one.

    max_patches: of an image; 0 for a model that sees none. Raises RequestError.
    """
    images = [image for message in messages for image in message.images]
    if images and not max_patches:
        raise _unsupported("this model sees no images")
    if len(images) > MAX_IMAGES:
        raise _unsupported(
            f"the conversation has {len(images)} images, of at most {MAX_IMAGES} in all of it"
        )
    return images


def place_images(
    images: Sequence[ImagePart], prompt: Sequence[int], frame: Sequence[int | None]
) -> tuple[ImageInput, ...]:
    """The images at their placeholders in a prompt.

    frame: the token before a placeholder, the placeholder, the one behind it. A
    placeholder that a model or a client wrote stands alone, and is none.

    Raises InvalidInputError for what is not base64, and where the prompt has another
    number of placeholders: the template leaves images out, or a text spells one.
    """
    if not images:
        return ()
    wanted = tuple(frame)
    places = [
        index
        for index in range(1, len(prompt) - 1)
        if prompt[index] == wanted[1] and tuple(prompt[index - 1 : index + 2]) == wanted
    ]
    if len(places) != len(images):
        raise InvalidInputError(
            f"the prompt has a framed {PATCH_TOKEN} {len(places)} times for {len(images)} images",
            param="messages",
        )
    try:
        return tuple(
            ImageInput(image.data(), place) for image, place in zip(images, places, strict=True)
        )
    except ValueError as error:
        raise InvalidInputError(str(error), param="messages") from error


def _unsupported(message: str) -> RequestError:
    return RequestError(message, status=400, code=UNSUPPORTED, param="messages")
