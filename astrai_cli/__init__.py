"""astrai: export a model file once, serve it to many clients at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrai_cli.loading import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # The engine is imported when it is asked for, so that the command line starts at once.
    if name == "load":
        from astrai_cli.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
