"""Clients that are slow, silent, greedy or broken: each is bounded, and others are served."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from server_process import ServerProcess, running_server

from astrai_cli.serving.transport.access import BODIES_AT_ONCE
from astrai_cli.serving.transport.connection import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
MAX_CONNECTIONS = 24
SECONDS = 0.7
LARGEST = 2048
ASK = b'{"messages":[{"role":"user","content":"go on"}],"max_tokens":1}'
VERBOSE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "go on"}],
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 20,
}


@pytest.fixture(scope="module")
def server(babbler: Path) -> Iterator[ServerProcess]:
    with running_server(
        babbler,
        limits={"max_context": 16384},
        max_request_bytes=LARGEST,
        max_connections=MAX_CONNECTIONS,
        header_timeout=SECONDS,
        body_timeout=SECONDS,
        keep_alive_timeout=SECONDS,
        send_timeout=SECONDS,
    ) as server:
        yield server


class Client:
    """A plain socket to the server."""

    def __init__(self, server: ServerProcess, *, receive_buffer: int | None = None) -> None:
        where = urlsplit(server.url)
        self._read_ahead = b""
        self.socket = socket.socket()
        self.socket.settimeout(60)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((where.hostname, where.port))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def dribble(self, data: bytes) -> bytes:
        """Send a byte at a time, from the start again and again; what came back in the end."""
        self.socket.settimeout(SECONDS / 20)
        received = b""
        for index in range(10_000):
            try:
                self.socket.sendall(data[index % len(data)].to_bytes())
                chunk = self.socket.recv(65536)
                received += chunk
                if not chunk:
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        return received

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        received = b""
        try:
            while chunk := self.socket.recv(65536):
                received += chunk
        # It has closed while something of ours was on its way.
        except ConnectionError:
            pass
        return received

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and body of the next answer, which says its length."""
        while b"\r\n\r\n" not in self._read_ahead:
            self._read_more()
        head, _, self._read_ahead = self._read_ahead.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        while len(self._read_ahead) < length:
            self._read_more()
        body, self._read_ahead = self._read_ahead[:length], self._read_ahead[length:]
        return int(head.split()[1]), json.loads(body)

    def _read_more(self) -> None:
        chunk = self.socket.recv(65536)
        assert chunk, self._read_ahead
        self._read_ahead += chunk

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def clients(server: ServerProcess) -> Iterator[Any]:
    """Makes clients that are closed in the end."""
    with ExitStack() as stack:

        def connect(**options: Any) -> Client:
            client = Client(server, **options)
            stack.callback(client.close)
            return client

        yield connect


def post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(answer: bytes) -> tuple[int, str]:
    """Status and message of an answer with which the server closes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def serves(server: ServerProcess) -> bool:
    with server.http() as http:
        return http.get("/health").status_code == 200


def test_headers_a_byte_at_a_time_are_given_up(clients: Any) -> None:
    endless = b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 1000
    assert refusal(clients().dribble(endless)) == (
        408,
        f"the headers of the request took longer than {SECONDS:g} seconds",
    )


def test_a_body_a_byte_at_a_time_is_given_up(clients: Any) -> None:
    client = clients()
    client.send(post(b"{", length=1000))
    status, message = refusal(client.dribble(b" "))
    assert (status, "the body" in message) == (408, True)


def test_a_connection_that_asks_nothing_is_closed(clients: Any) -> None:
    silent, used, nudging = clients(), clients(), clients()
    for client in (used, nudging):
        client.send(HEALTH)
        assert client.answer()[0] == 200
    assert silent.rest() == used.rest() == b""
    # The empty lines that may stand before a request are none.
    assert nudging.dribble(b"\r\n") == b""


def test_the_second_request_has_the_deadlines_of_the_first(clients: Any) -> None:
    client = clients()
    client.send(HEALTH)
    assert client.answer()[0] == 200
    assert refusal(client.dribble(HEALTH[:-2] + b"a: b\r\n" * 1000))[0] == 408


def test_a_body_that_nobody_waits_for_ends_the_connection_too(clients: Any) -> None:
    client = clients()
    client.send(post(b"").replace(b"/chat", b"/nothing").replace(b": 0", b": 99"))
    assert client.answer()[0] == 404
    assert client.dribble(b" ") == b""


def test_a_client_that_does_not_read_is_cut(server: ServerProcess, clients: Any) -> None:
    stalled = []
    # More than the system takes on a client's behalf.
    for stream, max_tokens in ((True, 16000), (False, 1000)):
        client = clients(receive_buffer=4096)
        asked = {**VERBOSE, "stream": stream, "max_tokens": max_tokens}
        client.send(post(json.dumps(asked).encode(), "Connection: close"))
        stalled.append(client)
    while server.stats()["decoding"] < len(stalled):
        time.sleep(0.01)
    while server.stats()["decoding"]:
        time.sleep(0.05)
    time.sleep(2 * SECONDS)
    streamed, whole = (client.rest() for client in stalled)
    assert not streamed.endswith(b"0\r\n\r\n")
    assert len(whole) < int(whole.lower().partition(b"content-length: ")[2].split()[0])


MANY = b"".join(b"a: b\r\n" for _ in range(MAX_HEADERS + 1))
ENDLESS = b"x" * 2 * MAX_HEAD_BYTES
HEAD = b"GET /health HTTP/1.1\r\n"
CHUNKED = post(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")


@pytest.mark.parametrize(
    "request_bytes",
    {
        "many headers": HEAD + MANY + b"\r\n",
        "a long header": HEAD + b"a: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        "an endless header": HEAD + b"a: " + ENDLESS,
        "an endless name": HEAD + ENDLESS,
        "an endless path": b"GET /" + ENDLESS,
        "endless empty lines": b"\r\n" * MAX_HEAD_BYTES,
        "an endless chunk header": CHUNKED + b"1;" + ENDLESS,
        "an endless trailer": CHUNKED + b"0\r\na: " + ENDLESS,
        "many trailers": CHUNKED + b"0\r\n" + MANY,
    }.items(),
    ids=lambda case: case[0],
)
def test_headers_over_the_bounds_are_refused(
    clients: Any, request_bytes: tuple[str, bytes]
) -> None:
    client = clients()
    try:
        client.send(request_bytes[1])
    except ConnectionError:
        return
    answer = client.rest()
    # Nothing where the refusal met bytes that were still on their way.
    assert answer == b"" or refusal(answer)[0] in {400, 431}


def test_as_many_headers_as_are_allowed_are_taken(clients: Any) -> None:
    client = clients()
    client.send(HEAD + MANY[: -len(b"a: b\r\n")] + b"\r\n")
    assert client.answer()[0] == 200


def test_what_is_no_http_is_refused(server: ServerProcess, clients: Any) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01", b"HELLO\r\n\r\n", b"GET noslash HTTP/1.1\r\n\r\n"):
        client = clients()
        client.send(garbage)
        assert refusal(client.rest())[0] == 400
    used = clients()
    used.send(HEALTH)
    used.answer()
    used.send(b"\x00")
    assert refusal(used.rest())[0] == 400


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_upgrade_that_cannot_be_is_passed_over(clients: Any, is_chunked: bool) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    request = post(ASK, *upgrade)
    if is_chunked:
        request = CHUNKED[:-2] + "\r\n".join([*upgrade, "", ""]).encode()
        request += b"%x\r\n%b\r\n0\r\n\r\n" % (len(ASK), ASK)
    head, end, body = request.partition(b"\r\n\r\n")
    client = clients()
    for pieces in ([request + HEALTH], [head + end, body + HEALTH], [head, end + body, HEALTH]):
        for piece in pieces:
            client.send(piece)
            time.sleep(0.05)
        assert client.answer()[1]["usage"]["completion_tokens"] == 1
        assert client.answer() == (200, {"status": "ok", "model_loaded": True})
    client.send(post(b"").replace(b"POST", b"CONNECT"))
    assert refusal(client.rest())[0] == 400


def test_requests_sent_ahead_are_answered_in_turn_up_to_a_bound(clients: Any) -> None:
    client = clients()
    client.send(post(b"{}") * MAX_PIPELINED + HEALTH)
    assert [client.answer()[0] for _ in range(MAX_PIPELINED + 1)] == [422] * MAX_PIPELINED + [200]
    client.send(HEALTH * 100)
    assert [client.answer()[0] for _ in range(MAX_PIPELINED + 1)] == [200] * (MAX_PIPELINED + 1)
    status, body = client.answer()
    assert (status, body["error"]["code"], client.rest()) == (429, "overloaded", b"")


def test_what_comes_before_a_broken_request_is_answered(clients: Any) -> None:
    client = clients()
    client.send(HEALTH * 2 + b"\x00")
    assert [client.answer()[0] for _ in range(3)] == [200, 200, 400]
    assert client.rest() == b""
    client = clients()
    # The last one would wait for a body that does not come.
    client.send(HEALTH + CHUNKED + b"no size\r\n")
    assert client.rest() == b""


def test_a_body_that_says_it_is_too_large_is_not_waited_for(clients: Any) -> None:
    client = clients()
    client.send(post(b"", "Expect: 100-continue", length=LARGEST + 1))
    assert client.answer()[0] == 413
    client = clients()
    client.send(post(b"", "Expect: 100-continue", length=2))
    assert client.socket.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_http_1_0_gets_no_chunks(clients: Any) -> None:
    for asked, end in ((b'{"stream":true,' + ASK[1:], b"data: [DONE]\n\n"), (ASK, b"}")):
        client = clients()
        client.send(post(asked).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = client.rest().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head
        assert b"transfer-encoding" not in head
        assert body.startswith((b"data: {", b"{"))
        assert body.endswith(end)


def test_a_new_connection_takes_the_place_of_the_one_idle_for_longest(
    server: ServerProcess, clients: Any
) -> None:
    idle = [clients() for _ in range(MAX_CONNECTIONS)]
    for client in idle:
        client.send(HEALTH)
        assert client.answer()[0] == 200
    assert serves(server)
    assert idle[0].rest() == b""


def test_with_no_connection_idle_a_new_one_is_refused(server: ServerProcess, clients: Any) -> None:
    busy = [clients() for _ in range(MAX_CONNECTIONS)]
    for client in busy:
        client.send(HEAD)
    answer = clients().rest()
    status, message = refusal(answer)
    assert (status, str(MAX_CONNECTIONS) in message) == (503, True)
    assert b"retry-after: 1\r\n" in answer
    for client in busy:
        client.close()
    assert serves(server)


def test_all_bodies_together_have_a_bound(server: ServerProcess, clients: Any) -> None:
    waiting = [clients() for _ in range(BODIES_AT_ONCE)]
    for client in waiting:
        client.send(post(b" " * (LARGEST - 1), length=LARGEST))
    # Until they have all been read.
    another = clients()
    another.send(post(b" " * LARGEST))
    status, body = another.answer()
    assert (status, body["error"]["code"]) == (429, "overloaded")
    for client in waiting:
        client.close()
    with server.http() as http:
        assert http.post("/v1/chat/completions", content=b" " * LARGEST).status_code == 422


def test_none_of_this_is_an_error_of_the_servers(server: ServerProcess) -> None:
    stats = server.stats()
    assert stats["worker"]["restarts"] == 0
    assert stats["decoding"] == stats["queue"] == 0
