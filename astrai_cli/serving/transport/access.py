"""Who may use the server, and under which path: all that is asked before a route is looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from starlette.types import ASGIApp

from astrai_cli.config import ServeConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.transport.keys import RequireKey, read_keys
from astrai_cli.serving.transport.middleware import BoundBodies, RootPath
from astrai_cli.serving.transport.origins import RefuseForeignPages, allow_origins, check_origins

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
BODIES_AT_ONCE = 16
"""The bodies of all requests in flight are as many bytes as so many of the largest, at most."""


@dataclass(frozen=True, slots=True)
class Access:
    """The server's rules, checked. loopback: whether only this machine can reach it."""

    keys: tuple[str, ...]
    origins: tuple[str, ...]
    root_path: str
    loopback: bool
    max_request_bytes: int

    @classmethod
    def of(cls, serve: ServeConfig, *, loopback: bool) -> Self:
        """Raises InvalidInputError for an option that cannot be used."""
        check_origins(serve.cors_origin)
        if serve.root_path and not _ROOT_PATH.fullmatch(serve.root_path):
            raise InvalidInputError(
                f"root_path {serve.root_path!r} is no path, such as /llm", param="root_path"
            )
        return cls(
            read_keys(serve), serve.cors_origin, serve.root_path, loopback, serve.max_request_bytes
        )

    def guard(self, app: ASGIApp) -> ASGIApp:
        """The app behind these rules. Refusals too can be read by pages that are allowed."""
        app = BoundBodies(app, BODIES_AT_ONCE * self.max_request_bytes)
        if self.keys:
            app = RequireKey(app, self.keys)
        app = RefuseForeignPages(app, self.origins, loopback=self.loopback)
        return RootPath(allow_origins(app, self.origins), self.root_path)
