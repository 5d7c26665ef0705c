"""Answers from a model in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from astrai_cli.chat.conversation import Message
from astrai_cli.chat.source import Ended
from astrai_cli.config import SamplingConfig, ServeConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.serving.chat_format import THINK_REACH, ChatFormat
from astrai_cli.serving.parsers import Delta
from astrai_cli.serving.tool_schemas import ToolSet


def _shown(deltas: Iterable[Delta]) -> Iterator[str]:
    """The answer's own text: what the model says to itself stays with it."""
    return (delta.text for delta in deltas if delta.channel == "content")


class LocalSource:
    """A model behind an engine, which it closes."""

    def __init__(self, engine: InferenceEngine) -> None:
        """Raises ArtifactError where the model's chat template is none."""
        self._format = ChatFormat.of(engine.text, ServeConfig())
        self._engine = engine

    @property
    def model(self) -> str:
        return self._engine.text.name

    def stream(
        self, messages: Sequence[Message], sampling: SamplingConfig
    ) -> Generator[str | Ended]:
        prompt = self._format.template.render([message.model_dump() for message in messages])
        token_ids = self._engine.text.encode_prompt(prompt)
        parser = self._format.make_parser(ToolSet(), prompt[-THINK_REACH:])
        pieces = self._engine.generate(
            token_ids,
            stream=True,
            write_special=self._format.writes_special,
            **sampling.model_dump(),
        )
        try:
            while True:
                yield from _shown(parser.feed(next(pieces).text))
        except StopIteration as end:
            completion = end.value
            reason = completion.finish_reason
            yield from _shown(parser.finish("length" if reason == "length" else "eos").deltas)
            yield Ended(reason, completion.usage)
        finally:
            pieces.close()

    def stats(self) -> Mapping[str, object]:
        return self._engine.get_stats()

    def close(self) -> None:
        self._engine.shutdown()
