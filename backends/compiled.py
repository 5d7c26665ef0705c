"""Where backends keep what they compiled for this machine."""

from __future__ import annotations

import os
from pathlib import Path

from astrai_cli.config import default_cache_dir


def compiled_dir(name: str) -> Path:
    """A folder of that name: under $ASTRAI_CACHE_DIR, or in the user's cache folder."""
    configured = os.environ.get("ASTRAI_CACHE_DIR")
    return (Path(configured).expanduser() if configured else default_cache_dir()) / name
