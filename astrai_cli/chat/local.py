"""Answers from a model in this process."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from astrai_cli.chat.conversation import Message
from astrai_cli.chat.source import Ended
from astrai_cli.config import SamplingConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.serving.templates import ChatTemplate


class LocalSource:
    """A model behind an engine, which it closes."""

    def __init__(self, engine: InferenceEngine) -> None:
        """Raises ArtifactError where the model's chat template is none."""
        self._template = ChatTemplate.of(engine.text)
        self._engine = engine

    @property
    def model(self) -> str:
        return self._engine.text.name

    def stream(
        self, messages: Sequence[Message], sampling: SamplingConfig
    ) -> Generator[str | Ended]:
        prompt = self._template.render([message.model_dump() for message in messages])
        token_ids = self._engine.text.encode_prompt(prompt)
        pieces = self._engine.generate(token_ids, stream=True, **sampling.model_dump())
        try:
            while True:
                if text := next(pieces).text:
                    yield text
        except StopIteration as end:
            yield Ended(end.value.finish_reason, end.value.usage)
        finally:
            pieces.close()

    def stats(self) -> Mapping[str, object]:
        return self._engine.get_stats()

    def close(self) -> None:
        self._engine.shutdown()
