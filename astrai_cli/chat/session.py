"""One chat: a source, a conversation, and the parameters answers are drawn with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from astrai_cli.chat.conversation import Conversation
from astrai_cli.chat.source import Ended, Source
from astrai_cli.config import SamplingConfig
from astrai_cli.engine.request import Usage


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """How the last answer went; times in seconds from the question on."""

    reason: str
    usage: Usage | None
    first_text: float
    total: float


class ChatSession:
    """Asks questions and keeps what was said."""

    def __init__(self, source: Source, sampling: SamplingConfig, system: str | None = None) -> None:
        self.source = source
        self.sampling = sampling
        self.conversation = Conversation(system)
        self.last: AnswerStats | None = None

    def ask(self, question: str, show: Callable[[str], None]) -> None:
        """Stream an answer to `show` and keep the turn.

        KeyboardInterrupt ends the answer: what was said until then is kept, and it
        is raised again. On an AstraiError the turn is dropped.
        """
        started = time.monotonic()
        first: float | None = None
        ended = Ended("cancelled", None)
        said: list[str] = []
        answer = self.source.stream(self.conversation.with_question(question), self.sampling)
        try:
            for event in answer:
                if isinstance(event, Ended):
                    ended = event
                    continue
                first = first or time.monotonic()
                said.append(event)
                show(event)
        except KeyboardInterrupt:
            self._keep(question, said)
            raise
        finally:
            answer.close()
            now = time.monotonic()
            self.last = AnswerStats(
                ended.reason, ended.usage, (first or now) - started, now - started
            )
        self._keep(question, said)

    def _keep(self, question: str, said: list[str]) -> None:
        if said:
            self.conversation.add(question, "".join(said))
