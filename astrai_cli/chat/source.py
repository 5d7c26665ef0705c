"""Where answers come from: the seam between the conversation and a model or server."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from astrai_cli.chat.conversation import Message
from astrai_cli.config import SamplingConfig
from astrai_cli.engine.request import Usage


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer; usage is None where a server does not tell it."""

    reason: str
    usage: Usage | None


class Source(Protocol):
    """A model that answers conversations."""

    @property
    def model(self) -> str: ...

    def stream(
        self, messages: Sequence[Message], sampling: SamplingConfig
    ) -> Generator[str | Ended]:
        """The answer's text as it comes, and one Ended after it.

        Closing the generator cancels the answer. Raises AstraiError.
        """

    def stats(self) -> Mapping[str, object]:
        """Figures about the model or server as a whole; may be empty."""

    def close(self) -> None: ...
