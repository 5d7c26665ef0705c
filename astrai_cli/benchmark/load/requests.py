"""What a load asks: conversations of random words, or the prompts of a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astrai_cli.config import INT32_MAX, LoadConfig
from astrai_cli.errors import InvalidInputError

_MAX_LINE_BYTES = 32 * 2**20

# Common and short, so that most vocabularies have a token for each.
_TEXT = """
about after all also and any back because but can come could day even find first for from get
give good hand have here how into just know life like little long look make man many more most
much new not now number old one only other our out part people place right same say see some take
tell than that the them then there these thing think this time too two under up use very want
water way well what when where which who will with word work world would write year you
"""
_WORDS = _TEXT.split()

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A conversation to answer with at most max_tokens tokens."""

    messages: tuple[Message, ...]
    max_tokens: int


class _Line(BaseModel):
    """A line of a file of prompts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str
    max_tokens: int | None = Field(None, ge=1, le=INT32_MAX)


def make_requests(config: LoadConfig) -> list[LoadRequest]:
    """The requests of a load, the same for the same seed. Raises InvalidInputError."""
    random = Random(config.load_seed)
    system: tuple[Message, ...] = ()
    if config.shared_prefix:
        system = ({"role": "system", "content": random_words(random, config.shared_prefix)},)
    asked = _random_prompts(random, config) if config.prompts is None else _read_prompts(config)
    return [
        LoadRequest((*system, {"role": "user", "content": prompt}), max_tokens)
        for prompt, max_tokens in asked
    ]


def random_words(random: Random, n_words: int) -> str:
    return " ".join(random.choices(_WORDS, k=n_words))


def _random_prompts(random: Random, config: LoadConfig) -> Iterator[tuple[str, int]]:
    for _ in range(config.requests):
        yield random_words(random, random.choice(config.prompt_words)), config.answer_tokens


def _read_prompts(config: LoadConfig) -> Iterator[tuple[str, int]]:
    assert config.prompts is not None
    lines = _read_lines(config.prompts, config.requests)
    for line in itertools.islice(itertools.cycle(lines), config.requests):
        yield line.prompt, line.max_tokens or config.answer_tokens


def _read_lines(path: Path, most: int) -> list[_Line]:
    lines: list[_Line] = []
    try:
        with path.open("rb") as file:
            for number in itertools.count(1):
                raw = file.readline(_MAX_LINE_BYTES)
                if not raw or len(lines) == most:
                    break
                if raw.strip():
                    lines.append(_parse(raw, f"--prompts: {path}, line {number}"))
    except OSError as error:
        raise InvalidInputError(f"--prompts: {path}: {error.strerror}", param="prompts") from error
    if not lines:
        raise InvalidInputError(f"--prompts: {path} has no prompt", param="prompts")
    return lines


def _parse(raw: bytes, where: str) -> _Line:
    try:
        return _Line.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidInputError(
            f"{where}: {field and field + ': '}{first['msg']}", param="prompts"
        ) from error
