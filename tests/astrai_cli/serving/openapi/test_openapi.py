"""The OpenAPI document: what it says is what the server does, by schemathesis and by hand.

ASTRAI_TEST_PHASES names schemathesis's phases; with `coverage` too it sends thousands of requests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import leak_check
import pytest
from muse_fixtures import CHAT_MMPROJ, CHAT_MODEL
from server_process import ServerProcess, running_server

from astrai_cli.serving.app import create_routes
from astrai_cli.serving.openapi.document import openapi_document
from astrai_cli.serving.transport.access import Access
from astrai_cli.serving.transport.keys import OPEN_PATHS

PHASES = os.environ.get("ASTRAI_TEST_PHASES", "fuzzing")
KEY = "a-key"
# Of those there is no word in the document: they are for people.
PAGES = {"/", "/docs", "/openapi.json"}
CONFIG = """
# What a schema accepts is not all there is to a request: tools, images and roles have their rules.
checks.positive_data_acceptance.enabled = false
# One item too many may be a body too large.
checks.negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 422, 429]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    limits = {"mmproj": str(CHAT_MMPROJ), "max_context": 192}
    with running_server(
        CHAT_MODEL, tool_parser="atem", api_key=KEY, root_path="/llm", limits=limits
    ) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> dict[str, Any]:
    with server.http() as client:
        described: dict[str, Any] = client.get("/openapi.json").json()
    return described


WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CHAT = {
    "messages": ASK,
    "tools": [{"type": "function", "function": WEATHER}],
    "max_tokens": 48,
    "temperature": 0,
}
MESSAGES = {
    "messages": ASK,
    "tools": [{"name": WEATHER["name"], "input_schema": WEATHER["parameters"]}],
    "max_tokens": 48,
    "temperature": 0,
}
RESPONSE = {
    "input": ASK[0]["content"],
    "tools": [{"type": "function", **WEATHER}],
    "max_output_tokens": 48,
    "temperature": 0,
}
COMPLETION = {"prompt": "A", "max_tokens": 4, "logprobs": 2, "n": 2}
USAGE = {"stream_options": {"include_usage": True}}


def test_every_answer_is_as_described(
    server: ServerProcess, http: httpx.Client, tmp_path: Path
) -> None:
    """schemathesis: right and wrong requests, no 5xx, every answer conforms and leaks nothing."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    secret = f"secret-{uuid.uuid4().hex}"
    http.post("/v1/chat/completions", json={**CHAT, "messages": [{**ASK[0], "content": secret}]})
    run = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "--config-file", config),
            *("run", f"{server.url}/openapi.json", "--url", f"{server.url}/llm"),
            *("--header", f"Authorization: Bearer {KEY}"),
            *("--phases", PHASES, "--max-examples", "12", "--generation-deterministic"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "leak_check",
            "PYTHONPATH": str(Path(leak_check.__file__).parent),
            leak_check.VARIABLE: "|".join([secret, KEY, *leak_check.PLACES]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert http.get("/stats").json()["worker"]["restarts"] == 0


def described(document: dict[str, Any], path: str, media: str) -> Callable[[Any], None]:
    """What checks an answer, or an event's data, against the document."""
    schema = document["paths"][path]["post"]["responses"]["200"]["content"][media]["schema"]
    if media == "text/event-stream":
        data = schema["properties"]["data"]
        schema = data.get("anyOf", [data])[0]["contentSchema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    return validator.validate


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "tools": [], "logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", COMPLETION),
        ("/v1/responses", RESPONSE),
        ("/v1/responses", {**RESPONSE, "tools": [], "max_output_tokens": 3}),
        ("/v1/messages", MESSAGES),
        ("/v1/messages", {**MESSAGES, "tools": [], "max_tokens": 3}),
    ],
)
def test_every_event_is_as_described(
    http: httpx.Client, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    whole = http.post(path, json=body).raise_for_status().json()
    described(document, path, "application/json")(whole)
    check = described(document, path, "text/event-stream")
    asked = {**body, "stream": True, **(USAGE if path.endswith("completions") else {})}
    lines = http.post(path, json=asked).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    assert len(data) >= 3
    for each in data:
        check(json.loads(each))


def test_every_route_is_described(document: dict[str, Any]) -> None:
    engine: Any = SimpleNamespace()
    access = Access((), (), "", loopback=True, max_request_bytes=1)
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in create_routes(engine, access)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in PAGES
    }
    assert routes == {(path, method) for path, each in document["paths"].items() for method in each}


def test_what_needs_a_key_is_told(document: dict[str, Any]) -> None:
    assert document["servers"] == [{"url": "/llm"}]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == ("401" in operation["responses"])
            assert ("security" in operation) == (path not in OPEN_PATHS)
    assert "security" not in json.dumps(openapi_document())


def test_the_page_shows_all_of_it_and_fetches_nothing(
    server: ServerProcess, document: dict[str, Any]
) -> None:
    with server.http() as client:
        response = client.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'; style-src")
    page = response.text
    targets = set(re.findall(r'(?:href|src)="([^"]*)"', page))
    ids = re.findall(r'id="([^"]*)"', page)
    assert {target for target in targets if not target.startswith("#")} == {"openapi.json"}
    assert {target[1:] for target in targets if target.startswith("#")} <= {*ids}
    assert len(ids) == len({*ids})
    assert {*document["components"]["schemas"]} <= {*ids}
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
