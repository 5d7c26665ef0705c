"""Bodies with something wrong in them: every one is answered, and nothing dies.

ASTRAI_TEST_BODIES sets how many; each is the same in every run.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from muse_fixtures import CHAT, CHAT_MMPROJ, CHAT_MODEL
from mutations import mutated
from server_process import ServerProcess, running_server

N_BODIES = int(os.environ.get("ASTRAI_TEST_BODIES", "1200"))
N_CLIENTS = 4
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
IMAGE = base64.b64encode((CHAT / "orange.png").read_bytes()).decode()
CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}

BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "model": "astrai",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
                {"role": "user", "content": "And tomorrow?"},
            ],
            "tools": [
                {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
            ],
            "tool_choice": "auto",
            "max_tokens": 2,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "stop": ["end", "."],
            "logit_bias": {"5": 1.5},
            "logprobs": True,
            "top_logprobs": 2,
            "n": 1,
            "reasoning": {"effort": "low"},
            "response_format": {"type": "text"},
            "metadata": {"a": "b"},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What colour? "},
                        {
                            "type": "image_url",
                            "image_url": {"url": f"data:image/png;base64,{IMAGE}"},
                        },
                    ],
                }
            ],
            "max_completion_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/messages",
        {
            "model": "astrai",
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Weather in Paris?"},
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "tool_use",
                            "id": "toolu_1",
                            "name": "get_weather",
                            "input": {"city": "Paris"},
                        }
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
                    ],
                },
            ],
            "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
            "tool_choice": {"type": "auto"},
            "max_tokens": 2,
            "stop_sequences": ["end"],
            "temperature": 0.5,
            "metadata": {"user_id": "me"},
            "stream": True,
        },
    ),
    (
        "/v1/messages/count_tokens",
        {
            "model": "astrai",
            "system": "Be brief.",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What colour? "},
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": IMAGE,
                            },
                        },
                    ],
                }
            ],
        },
    ),
    (
        "/v1/completions",
        {
            "model": "astrai",
            "prompt": ["Hello", "World"],
            "max_tokens": 1,
            "logprobs": 2,
            "seed": 1,
        },
    ),
    (
        "/v1/responses",
        {
            "model": "astrai",
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "get_weather",
                    "arguments": '{"city": "Paris"}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
            ],
            "tools": [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}],
            "max_output_tokens": 2,
            "stream": True,
        },
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    limits = {"mmproj": str(CHAT_MMPROJ), "max_context": 512}
    options = {"tool_parser": "atem", "log_level": "error"}
    with running_server(CHAT_MODEL, limits=limits, **options) as running:
        yield running


def check(path: str, answer: httpx.Response) -> None:
    """An answer, or an error in the shape of its protocol that blames the request."""
    # A call against its schema is the model's fault, and told as such.
    assert answer.status_code < 500 or answer.json()["error"]["code"] == "invalid_tool_output"
    if answer.status_code == 200:
        return
    error = answer.json()["error"]
    assert error["message"]
    assert error["type"]
    assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")
    assert "Traceback" not in answer.text


async def send_all(url: str) -> Counter[tuple[str, int]]:
    """How often each path answered with each status."""
    statuses: Counter[tuple[str, int]] = Counter()
    seeds = iter(range(N_BODIES))

    async def client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            for seed in seeds:
                path, body = BODIES[seed % len(BODIES)]
                answer = await http.post(path, content=mutated(body, seed))
                check(path, answer)
                statuses[path, answer.status_code] += 1

    await asyncio.gather(*(client() for _ in range(N_CLIENTS)))
    return statuses


def test_every_body_is_answered_and_the_worker_stays(server: ServerProcess) -> None:
    hello = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}
    with server.http() as http:

        def said() -> Any:
            return http.post("/v1/chat/completions", json=hello).json()["choices"]

        before, worker = said(), server.stats()["worker"]
        statuses = asyncio.run(send_all(server.url))
        assert said() == before
        after = server.stats()
    assert after["worker"] == worker
    assert [after[what] for what in ("queue", "prefilling", "decoding")] == [0, 0, 0]
    for path, _ in BODIES:
        # Some are still good, so that the fuzzing reaches behind the first check.
        assert statuses[path, 200] > N_BODIES / 200, (path, json.dumps(str(statuses)))
