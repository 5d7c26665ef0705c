"""Chromium as it is installed, for the tests of the chat page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser; skips the test where none is installed."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(_NAMES)} is installed")
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, who runs tests in containers.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
