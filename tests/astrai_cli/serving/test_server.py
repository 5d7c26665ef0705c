"""The server process: its start, its end, and the death of its worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_process import ServerProcess, running_server, start_server

from astrai_cli.loading import RunnableModel

ENDLESS: dict[str, Any] = {
    "model": "astrai",
    "messages": [{"role": "user", "content": "go on"}],
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
LONG = {"limits": {"max_context": 16384}}


def health(server: ServerProcess) -> httpx.Response:
    with server.http() as http:
        return http.get("/health")


def listens(server: ServerProcess) -> bool:
    """Whether connections are taken; a request may be cut off where they cease to be."""
    try:
        connect(server).close()
    except ConnectionRefusedError:
        return False
    return True


def connect(server: ServerProcess) -> socket.socket:
    address = httpx.URL(server.url)
    return socket.create_connection((address.host, address.port or 80))


def test_health_and_stats(parrot_server: ServerProcess) -> None:
    assert health(parrot_server).json() == {"status": "ok", "model_loaded": True}
    stats = parrot_server.stats()
    assert stats["worker"]["state"] == "ready"
    assert stats["cells_total"] > 0


def test_a_killed_worker_ends_its_answers_with_an_error_and_is_replaced(
    babbler: Path, prepared: Callable[[Path], RunnableModel]
) -> None:
    model = prepared(babbler)
    with running_server(model.source, model.backend, **LONG) as server:
        client = server.openai()
        answer = client.chat.completions.create(**ENDLESS)
        next(answer)
        os.kill(server.stats()["worker"]["pid"], signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            list(answer)
        assert caught.value.code == "engine_unavailable"

        down = health(server)
        assert down.status_code == 503
        assert down.json()["status"] == "restarting"
        assert down.json()["detail"]
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(**ENDLESS)
        assert refused.value.status_code == 503
        assert refused.value.response.json()["detail"]
        assert refused.value.response.headers["retry-after"]

        while health(server).status_code != 200:
            time.sleep(0.05)
        again = client.chat.completions.create(
            model="astrai", messages=ENDLESS["messages"], max_tokens=3
        )
        assert again.choices[0].finish_reason in {"length", "stop"}
        assert server.stats()["worker"]["restarts"] == 1


def test_overload_is_429_at_once(babbler: Path) -> None:
    with running_server(babbler, limits={**LONG["limits"], "max_inflight_requests": 1}) as server:
        client = server.openai()
        with client.chat.completions.create(**ENDLESS) as answer:
            next(iter(answer))
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(**ENDLESS)
            assert int(caught.value.response.headers["retry-after"]) >= 1
            assert caught.value.code == "overloaded"


def test_headers_wait_for_the_first_token_no_longer_than_asked(babbler: Path) -> None:
    limits = {**LONG["limits"], "max_decode_sequences": 1}
    with running_server(babbler, limits=limits, streaming_preflight_timeout=0.2) as server:
        client = server.openai()
        with client.chat.completions.create(**ENDLESS) as running:
            next(iter(running))
            waiting = client.chat.completions.create(**{**ENDLESS, "max_tokens": 2})
            running.close()
            assert [chunk.choices[0].finish_reason for chunk in waiting][-1] == "length"


def test_sigterm_lets_answers_end_and_exits_with_0(babbler: Path) -> None:
    with running_server(babbler, **LONG) as server:
        options = {**ENDLESS, "max_tokens": 400}
        answer = server.openai().chat.completions.create(**options)
        next(answer)
        server.process.send_signal(signal.SIGTERM)
        *_, last = answer
        assert last.choices[0].finish_reason == "length"
        with pytest.raises(httpx.ConnectError):
            health(server)
        assert server.wait() == 0
        assert server.log == ""


def test_what_still_runs_at_a_signal_is_told(babbler: Path) -> None:
    with running_server(babbler, log_level="info", **LONG) as server:
        answer = server.openai().chat.completions.create(**{**ENDLESS, "max_tokens": 400})
        next(answer)
        server.process.send_signal(signal.SIGINT)
        list(answer)
        assert server.wait() == 0
    assert "finishing 1 answer; again to stop at once" in server.log


def test_a_worker_that_the_same_signal_ends_is_no_fault(babbler: Path) -> None:
    with running_server(babbler) as server:
        worker = server.stats()["worker"]["pid"]
        host = httpx.URL(server.url).netloc.decode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        with connect(server) as unfinished:
            # The server waits for the rest of this request, and the worker is done before it.
            unfinished.sendall(head.encode())
            health(server)
            for pid in (server.process.pid, worker):
                os.kill(pid, signal.SIGTERM)
            assert_ends(worker)
        assert server.wait() == 0
    assert server.log == ""


def test_answers_that_take_longer_than_the_shutdown_may_are_cut_with_an_error(
    babbler: Path,
) -> None:
    with running_server(babbler, shutdown_timeout=0.3, **LONG) as server:
        answer = server.openai().chat.completions.create(**ENDLESS)
        next(answer)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(answer)
        assert server.wait() == 0


def test_a_second_signal_quits_at_once(babbler: Path) -> None:
    with running_server(babbler, **LONG) as server:
        answer = server.openai().chat.completions.create(**ENDLESS)
        next(answer)
        worker = server.stats()["worker"]["pid"]
        server.process.send_signal(signal.SIGINT)
        while listens(server):
            time.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT
        assert_ends(worker)


def test_a_killed_server_leaves_no_worker(babbler: Path) -> None:
    with running_server(babbler, **LONG) as server:
        worker = server.stats()["worker"]["pid"]
        next(server.openai().chat.completions.create(**ENDLESS))
        server.process.kill()
        assert_ends(worker)


def assert_ends(pid: int) -> None:
    """Wait for a process that is not our child to end; pytest's own timeout bounds it."""
    while Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)


def fails_with(process: Any) -> tuple[int, str]:
    out, log = process.communicate(timeout=60)
    assert out == ""
    assert len(log.splitlines()) == 1, log
    return process.returncode, log


def test_a_port_in_use_is_one_line(parrot: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, log = fails_with(start_server(parrot, port=port))
    assert code == 2
    assert str(port) in log
    assert "in use" in log


def test_a_host_that_is_not_ours_is_one_line(parrot: Path) -> None:
    code, log = fails_with(start_server(parrot, host="203.0.113.7"))
    assert code == 2
    assert "203.0.113.7" in log


def test_a_model_that_does_not_open_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF")
    code, log = fails_with(start_server(file))
    assert code == 3
    assert str(file) in log


def test_a_served_name_is_the_model_id(parrot: Path) -> None:
    with running_server(parrot, served_model_name="polly") as server, server.http() as http:
        assert http.get("/v1/models").json()["data"][0]["id"] == "polly"
        body = {"model": "polly", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert http.post("/v1/chat/completions", content=json.dumps(body)).status_code == 200
