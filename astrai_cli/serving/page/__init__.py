"""The chat page: its sources, put together into one response that fetches nothing.

The scripts are ES modules that an editor or a browser takes as they are. Their imports of
each other are resolved here, by joining them in order, so that the page is one document
whose Content-Security-Policy names by hash the one script and the one style it runs.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

# Each one imports from those before it only.
MODULES = (
    "dom",
    "inline",
    "blocks",
    "leaves",
    "markdown",
    "stream",
    "answer",
    "conversation",
    "store",
    "layout",
    "dialogs",
    "composer",
    "parameters",
    "sidebar",
    "answer_view",
    "transcript",
    "app",
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=async |class |const |function )", re.MULTILINE)


class ChatPage:
    """The page as it is sent, made once."""

    def __init__(self) -> None:
        style, script = _read("style.css"), joined_modules()
        html = _read("index.html").replace("/* style.css */", style)
        # Last, for the script may hold anything but its own end.
        self._body = html.replace("/* app.js */", script).encode()
        etag = f'"{sha256(self._body).hexdigest()[:32]}"'
        self._headers = {
            "cache-control": "no-cache",
            "content-security-policy": content_security_policy(style, script),
            "etag": etag,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }

    async def get(self, request: Request) -> Response:
        """The page, or 304 for a browser that has it."""
        if self._headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, media_type="text/html", headers=self._headers)


def joined_modules() -> str:
    """All modules as one, in which every name is known to what follows it."""
    return "\n".join(
        _EXPORT.sub("", _IMPORT.sub("", _read(f"{name}.js"))).strip() for name in MODULES
    )


def content_security_policy(style: str, script: str) -> str:
    """Nothing but this style, this script, inline images and requests to this server.

    Text cannot be assigned where the browser would parse it as markup (trusted types).
    """
    directives = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
