"""An OpenAI-compatible HTTP server whose answers a test writes beforehand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[dict[str, Any]], Iterable[str | bytes]]
"""From a request's body to the answer: text becomes chunks, bytes are sent as they are."""


class ScriptedServer(ThreadingHTTPServer):
    """Serves one model, `scripted`; `bodies` keeps what was asked, `gone` is set on disconnect."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.status = 200
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self) -> None:
        self._begin("application/json")
        self.wfile.write(json.dumps({"data": [{"id": "scripted"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        self._begin("text/event-stream")
        try:
            for piece in self.server.script(body):
                self.wfile.write(piece if isinstance(piece, bytes) else text_chunk(piece))
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()

    def _begin(self, kind: str) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_chunk(text: str) -> bytes:
    return event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})


END = (
    event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    + event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    + b"data: [DONE]\n\n"
)


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
