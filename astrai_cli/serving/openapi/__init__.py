"""`/openapi.json` describes what the server takes and answers; `/docs` shows it to people."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astrai_cli.serving.openapi.document import openapi_document


class OpenApiEndpoints:
    """The document of one server, and the page that shows it and fetches nothing."""

    def __init__(self, *, root_path: str, has_keys: bool) -> None:
        document = openapi_document(root_path=root_path, has_keys=has_keys)
        style = _read("docs.css")
        self._document = JSONResponse(document)
        self._page = Response(
            _render(document, style),
            media_type="text/html",
            headers={"content-security-policy": _policy(style)},
        )

    async def document(self, _request: Request) -> Response:
        return self._document

    async def page(self, _request: Request) -> Response:
        return self._page


def _render(document: dict[str, Any], style: str) -> str:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_read("docs.html.jinja"))
    return template.render(document=document, style=style)


def _policy(style: str) -> str:
    """Nothing but this style."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
