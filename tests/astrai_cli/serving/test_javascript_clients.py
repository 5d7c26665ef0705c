"""The official JavaScript clients against a real server; their tests are in tests/javascript."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from muse_fixtures import CHAT
from server_process import ServerProcess

FOLDER = Path(__file__).parents[2] / "javascript"


@pytest.fixture(scope="module")
def node() -> str:
    """Node.js of the environment, with the clients installed."""
    found = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
    if found is None:
        pytest.skip("there is no node")
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("the clients are not installed: make javascript-clients")
    return found


@pytest.mark.parametrize("client", ["openai", "anthropic", "ai"])
def test_official_client(client: str, node: str, muse_server: ServerProcess) -> None:
    ran = subprocess.run(
        [node, "--test", "--test-timeout=60000", f"{client}.test.js"],
        check=False,
        cwd=FOLDER,
        env={
            "PATH": os.environ["PATH"],
            "ASTRAI_TEST_URL": muse_server.url,
            "ASTRAI_TEST_IMAGE": str(CHAT / "blue.png"),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
