"""SmolLM2 on the cpu backend: what many clients get at once is what each gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI
from server_process import ServerProcess, running_server

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.loading import RunnableModel, open_engine
from astrai_cli.models.text import TextModel
from astrai_cli.serving.templates import ChatTemplate

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea. " * 12,
    "東京は日本の首都です。なぜですか?",
    "Расскажи мне сказку.",
    "مرحبا، كيف حالك؟",
    "def add(first, second):\n    return first + second\n" * 6,
    "👋🌍 Say hello to the world!",
    "1 2 3 5 8 13",
]


@pytest.fixture(scope="module")
def engine(smollm2: RunnableModel) -> Iterator[InferenceEngine]:
    with open_engine(smollm2, LimitsConfig(max_context=1024)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(smollm2: RunnableModel) -> Iterator[ServerProcess]:
    limits = {"max_context": 1024, "threads": None}
    with running_server(smollm2.source, smollm2.backend, limits=limits) as server:
        yield server


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 11}])
def test_eight_at_once_get_the_tokens_they_get_alone(
    engine: InferenceEngine, sampling: dict[str, Any]
) -> None:
    options = {"max_tokens": 48, "ignore_eos": True, **sampling}
    together = engine.generate(QUESTIONS, **options)
    assert together == [engine.generate(question, **options) for question in QUESTIONS]


@pytest.mark.parametrize("pattern", ["👋🌍", "東京都、", "Привет мир! "])
def test_every_script_arrives_whole(engine: InferenceEngine, pattern: str) -> None:
    stream = engine.generate(pattern * 8, stream=True, temperature=0, max_tokens=40)
    text = "".join(piece.text for piece in stream)
    assert pattern in text
    # The limit may cut the last character, and no other.
    assert "\ufffd" not in text[:-1]


def test_wild_text_is_the_decoding_of_its_ids(engine: InferenceEngine) -> None:
    for answer in engine.generate(QUESTIONS, temperature=3, top_k=0, seed=5, max_tokens=48):
        assert answer.text == engine.text.tokenizer.decode(answer.token_ids)


@dataclass(frozen=True)
class Answer:
    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


def ask(client: OpenAI, number: int, stream: bool) -> Answer:
    """Answer number `number`: always the same question, sampling and length."""
    options: dict[str, Any] = {
        "model": "astrai",
        "messages": [{"role": "user", "content": QUESTIONS[number % 8]}],
        "max_tokens": 5 + number,
        "temperature": number % 3,
        "seed": number,
        "extra_body": {"ignore_eos": number % 2 == 0},
    }
    if not stream:
        whole = client.chat.completions.create(**options)
        choice, usage = whole.choices[0], whole.usage
        assert usage is not None
        text = choice.message.content or ""
        return Answer(text, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens)
    *chunks, last = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage is not None
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    reason = chunks[-1].choices[0].finish_reason
    return Answer(text, reason, last.usage.prompt_tokens, last.usage.completion_tokens)


def test_a_hundred_requests_of_eight_threads_get_what_each_gets_alone(
    server: ServerProcess, smollm2: RunnableModel
) -> None:
    client = server.openai()
    alone = [ask(client, number, stream=False) for number in range(25)]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda each: ask(client, each % 25, stream=each % 2 == 0), range(100))
        )
    assert together == [alone[each % 25] for each in range(100)]

    model = TextModel.read(smollm2.source)
    template = ChatTemplate.of(model)
    for number, answer in enumerate(alone):
        prompt = template.render([{"role": "user", "content": QUESTIONS[number % 8]}])
        assert answer.prompt_tokens == len(model.encode_prompt(prompt))
        if answer.finish_reason == "length":
            assert answer.completion_tokens == 5 + number
        else:
            assert number % 2
            assert answer.completion_tokens <= 5 + number
