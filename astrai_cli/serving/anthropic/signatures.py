"""What a thinking block carries, so that a client can send it back: `signature`.

Of thinking that was shown it is a digest, which tells whether the text is unchanged. Of
thinking that was not, it is the text, for a client that shows none. It hides nothing and
is no secret: whoever may ask may also say what the model is to have thought.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

_DIGEST = "astrai-sha256-"
_TEXT = "astrai-text-"


def sign(thinking: str, *, is_shown: bool) -> str:
    """The signature of the block that a text becomes. is_shown: whether the text is in it."""
    data = thinking.encode()
    if is_shown:
        return _DIGEST + _base64(hashlib.sha256(data).digest())
    return _TEXT + _base64(data)


def thinking_of(thinking: str, signature: str) -> str:
    """What was thought, of a block that came back; that of other servers as it stands.

    Raises ValueError for one of ours that was changed.
    """
    if signature.startswith(_DIGEST) and signature != sign(thinking, is_shown=True):
        raise ValueError("the thinking is not what its signature was made of")
    if not signature.startswith(_TEXT):
        return thinking
    if thinking:
        raise ValueError("the signature is that of a block without thinking")
    try:
        return base64.b64decode(signature.removeprefix(_TEXT), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"the signature was changed: {error}") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
