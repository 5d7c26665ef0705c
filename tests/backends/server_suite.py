"""A small trained Muse Glimmer behind the official client, on any backend in float32.

A backend's test module subclasses `ServerSuite` and gives the fixture `artifact`: CHAT_MODEL
with CHAT_MMPROJ.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from muse_fixtures import CHAT, CHAT_MODEL, chat_cases, image_cases
from openai import OpenAI
from server_process import ServerProcess, running_server

from astrai_cli.models.text import TextModel
from astrai_cli.serving.parsers import parse_output

# What the first message says stands as it is, with placeholders for images.
VERBATIM = """{# tools #}{% set content = messages[0].content %}
{%- if content is string %}{{ content }}{% else %}{% for part in content %}
{{- '<|image_start|><|patch|><|image_end|>' if part.type == 'image' else part.text }}
{%- endfor %}{% endif %}"""
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("get_weather", "get_time", "write_file", "search")
]


def ask(client: OpenAI, content: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 96, "logprobs": True, **options}
    messages: list[Any] = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="astrai", messages=messages, **given)


def content_of(case: dict[str, Any]) -> Any:
    if "image" not in case:
        return case["prompt"]
    data = base64.b64encode((CHAT / case["image"]).read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    before, after = ({"type": "text", "text": case[part]} for part in ("before", "after"))
    return [before, image, after]


def said(answer: Any) -> list[str]:
    return [each.token for each in answer.choices[0].logprobs.content]


class ServerSuite:
    """The suite. limits: those of the server."""

    backend: ClassVar[str]
    limits: ClassVar[dict[str, Any]] = {"max_context": 1024, "max_decode_sequences": 8}

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls) -> Path:
        raise NotImplementedError("each backend's tests give this fixture")

    @pytest.fixture(scope="class")
    @classmethod
    def server(
        cls, artifact: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[ServerProcess]:
        template = tmp_path_factory.mktemp("verbatim") / "template.jinja"
        template.write_text(VERBATIM)
        options = {"tool_parser": "atem", "chat_template": str(template)}
        with running_server(artifact, cls.backend, limits=cls.limits, **options) as running:
            yield running

    def test_reference_answers_token_for_token_eight_at_once(self, server: ServerProcess) -> None:
        """Texts, tool calls and images, each as two other programs say it alone."""
        cases = [*chat_cases(), *image_cases()]
        client = server.openai()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda case: ask(client, content_of(case), tools=TOOLS), cases))
        tokenizer = TextModel.read(CHAT_MODEL).tokenizer
        for case, answer in zip(cases, answers, strict=True):
            *expected, _end = case["greedy_ids"]
            assert said(answer) == [
                tokenizer.decode([token_id], skip_special_tokens=False) for token_id in expected
            ]
            assert answer.usage.prompt_tokens == len(case["prompt_ids"])
            parsed = parse_output("atem", case["greedy_text"], TOOLS)
            calls = answer.choices[0].message.tool_calls or []
            assert [
                (call.function.name, json.loads(call.function.arguments)) for call in calls
            ] == [(call.name, call.arguments) for call in parsed.tool_calls]
        assert server.stats()["images_encoded"] == len(image_cases())

    def test_a_client_that_leaves_frees_its_place(self, server: ServerProcess) -> None:
        async def leave() -> None:
            stream = await server.async_openai().chat.completions.create(
                model="astrai",
                messages=[{"role": "user", "content": "go on"}],
                stream=True,
                extra_body={"ignore_eos": True},
            )
            await anext(stream)
            await stream.close()
            while (stats := server.stats())["active"]:
                await asyncio.sleep(0.01)
            assert stats["cells_used"] == 0

        before = server.stats()["requests_finished"]["cancelled"]
        asyncio.run(leave())
        assert server.stats()["requests_finished"]["cancelled"] == before + 1

    def test_a_session_goes_on(self, server: ServerProcess) -> None:
        client = server.openai()
        case = max(chat_cases(), key=lambda case: len(case["prompt_ids"]))
        prompt = str(case["prompt"])
        options = {"extra_body": {"session_id": "s"}, "max_tokens": 5}
        first = ask(client, prompt, **options)
        again = ask(client, prompt + "".join(said(first)), **options)
        assert again.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens

    def test_seeds_repeat_themselves(self, server: ServerProcess) -> None:
        """Whatever else runs beside them."""
        client = server.openai()
        prompt = str(chat_cases()[5]["prompt"])
        options = {"temperature": 2, "max_tokens": 12, "extra_body": {"top_k": 0}}

        def draw(seed: int) -> list[str]:
            return said(ask(client, prompt, seed=seed, **options))

        seeds = [1, 2, 3, 1, 2, 3]
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(draw, seeds))
        assert together[:3] == together[3:]
        assert together[0] == draw(1)
        assert together[0] != together[1]
