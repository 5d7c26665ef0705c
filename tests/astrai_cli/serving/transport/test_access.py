"""Who may use the server: keys, web pages of other origins, a proxy's path, TLS."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import write_certificate
from server_process import ServerProcess, running_server

from astrai_cli.config import LimitsConfig, ServeConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.server import run_server

FIRST, SECOND, THIRD = "first-key", "second-key", "third-key"
PAGE = "https://chat.example.com"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
BEARER = {"Authorization": f"Bearer {FIRST}"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(
    parrot: Path, certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"\n{SECOND}  \n\n{THIRD}\n")
    with running_server(
        parrot,
        api_key=FIRST,
        api_key_file=str(keys),
        cors_origin=[PAGE],
        root_path="/llm",
        tls_certfile=str(certificate[0]),
        tls_keyfile=str(certificate[1]),
    ) as server:
        yield server


@pytest.fixture
def http(server: ServerProcess, certificate: tuple[Path, Path]) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=server.url, verify=context, timeout=60) as client:
        yield client


@pytest.mark.parametrize("key", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/llm/v1/chat/completions"])
def test_every_key_is_taken_with_a_proxys_path_and_without(
    http: httpx.Client, path: str, key: str
) -> None:
    bearer = http.post(path, json=ASK, headers={"Authorization": f"bearer  {key}"})
    named = http.post(path, json=ASK, headers={"x-api-key": key})
    assert (bearer.status_code, named.status_code) == (200, 200)


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ({}, "has no API key"),
        ({"Authorization": "Bearer"}, "has no API key"),
        ({"Authorization": f"Basic {FIRST}"}, "has no API key"),
        ({"Authorization": "Bearer first-ke"}, "is not one of this server's"),
        ({"Authorization": "Bearer first-keyy"}, "is not one of this server's"),
        ({"x-api-key": ""}, "is not one of this server's"),
        ({"x-api-key": "sekret-ä".encode()}, "is not one of this server's"),
    ],
)
def test_without_a_key_nothing_is_served(
    http: httpx.Client, headers: dict[str, Any], what: str
) -> None:
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/stats"),
        ("GET", "/metrics"),
        ("POST", "/v1/chat/completions"),
        ("DELETE", "/v1/sessions/s"),
        ("GET", "/nothing"),
    ):
        response = http.request(method, path, headers=headers)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert what in error["message"]
        assert "sekret" not in response.text


def test_a_refusal_has_the_shape_of_the_paths_protocol(http: httpx.Client) -> None:
    for path in ("/v1/messages", "/llm/v1/messages/count_tokens"):
        body = http.post(path, json=ASK).json()
        assert body["type"] == "error"
        assert body["error"]["type"] == "authentication_error"


def test_nothing_is_found_by_adding_a_slash_but_the_page(http: httpx.Client) -> None:
    for path in ("/v1/chat/completions/", "/llm/v1/chat/completions/", "/health/", "/llm/health/"):
        response = http.post(path, json=ASK, headers=BEARER)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert http.get("/llm").headers["location"] == "llm/"
    page = http.get("/llm", follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, "/llm/")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/llm/v1/messages"])
def test_a_compressed_body_is_refused(http: httpx.Client, path: str) -> None:
    for encoding, status in (("identity", 200), ("gzip", 415), ("identity, br", 415)):
        response = http.post(path, json=ASK, headers={**BEARER, "Content-Encoding": encoding})
        assert response.status_code == status
        if status == 415:
            error = response.json()["error"]
            assert error["code"] == "unsupported_content_encoding"
            assert encoding in error["message"]
            assert ("type" in response.json()) == ("messages" in path)


def test_health_needs_no_key(http: httpx.Client) -> None:
    assert http.get("/health").status_code == http.get("/llm/health").status_code == 200


def test_pages_of_allowed_origins_may_read_all_answers(http: httpx.Client) -> None:
    headers = {**BEARER, "Origin": PAGE}
    preflight = http.options(
        "/v1/chat/completions",
        headers={
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        },
    )
    assert preflight.status_code == 200
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    for response in (
        preflight,
        http.post("/v1/chat/completions", json=ASK, headers=headers),
        http.post("/v1/chat/completions", json={**ASK, "stream": True}, headers=headers),
        http.post("/v1/chat/completions", content=b"{", headers=headers),
        http.get("/v1/models", headers={"Origin": PAGE}),
        http.get("/nothing", headers=headers),
    ):
        assert response.headers["access-control-allow-origin"] == PAGE
        if response is not preflight:
            exposed = response.headers["access-control-expose-headers"].split(", ")
            assert exposed == ["x-request-id", "request-id", "retry-after"]
        assert "access-control-allow-credentials" not in response.headers


def test_pages_of_other_origins_may_not(http: httpx.Client) -> None:
    headers = {**BEARER, "Origin": "https://evil.example"}
    response = http.post("/v1/chat/completions", json=ASK, headers=headers)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


@pytest.fixture(scope="module")
def plain_server(parrot: Path) -> Iterator[ServerProcess]:
    with running_server(parrot) as server:
        yield server


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, None, 200),
        (None, "model.internal", 200),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", 200),
        ("http://[::1]:8000", "[::1]:8000", 200),
        ("http://localhost", "localhost", 200),
        ("https://app.localhost", "app.localhost", 200),
        ("http://localhost:3000", "localhost:8000", 403),
        ("https://evil.example", "localhost:8000", 403),
        ("null", "localhost:8000", 403),
        ("", "", 403),
        # A name that its owner lets resolve to this machine.
        ("http://evil.example:8000", "evil.example:8000", 403),
        ("http://localhost.evil.example", "localhost.evil.example", 403),
        ("http://[", "[", 403),
    ],
)
def test_a_server_on_loopback_works_for_its_own_pages_only(
    plain_server: ServerProcess, origin: str | None, host: str | None, status: int
) -> None:
    headers = {"Origin": origin, "Host": host}
    given = {name: value for name, value in headers.items() if value is not None}
    # As a page sends it that needs nobody's leave.
    given["Content-Type"] = "text/plain"
    with plain_server.http() as http:
        response = http.post("/v1/chat/completions", content=json.dumps(ASK), headers=given)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "origin_not_allowed"
        assert "--cors-origin" in response.json()["error"]["message"]


def test_a_star_allows_all_pages_and_no_access_log_is_none(parrot: Path) -> None:
    with (
        running_server(parrot, cors_origin="*", log_level="info", access_log=False) as server,
        server.http() as http,
    ):
        headers = {"Origin": "http://a.example"}
        response = http.post("/v1/chat/completions", json=ASK, headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "*"
    assert "path=" not in server.log


def fails(parrot: Path, **options: Any) -> str:
    """What is said before the model is opened."""
    with pytest.raises(InvalidInputError) as caught:
        run_server(parrot, "eager", LimitsConfig(), ServeConfig(port=0, **options), print)
    return str(caught.value)


def test_options_that_cannot_be_used_are_named(
    parrot: Path, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    spaced = tmp_path / "spaced"
    spaced.write_text("good\nb ad\n")
    other_key = write_certificate(tmp_path / "other")[1]
    locked_key = write_certificate(tmp_path / "locked", password=b"x")[1]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"api_key_file": str(tmp_path / "none")}, "none: No such file"),
        ({"api_key_file": str(empty)}, "has no key"),
        ({"api_key_file": str(spaced)}, "line 2 is not visible ASCII"),
        ({"cors_origin": ["https://a.example/"]}, "'https://a.example/' is neither * nor"),
        ({"root_path": "llm/"}, "root_path 'llm/' is no path"),
        ({"tls_keyfile": str(certificate[1])}, "needs tls_certfile"),
        ({"tls_certfile": str(tmp_path / "none")}, "none: No such file"),
        ({"tls_certfile": str(empty)}, "no certificate and key in PEM"),
        ({"tls_certfile": str(certificate[0])}, "cert.pem: a certificate without its private key"),
        ({"tls_certfile": str(certificate[0])}, "--tls-keyfile"),
        (
            {"tls_certfile": str(certificate[0]), "tls_keyfile": str(other_key)},
            "key values mismatch",
        ),
        (
            {"tls_certfile": str(certificate[0]), "tls_keyfile": str(locked_key)},
            "the private key is encrypted",
        ),
    ]
    for options, message in cases:
        assert message in fails(parrot, **options), options
