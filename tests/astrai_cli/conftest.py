"""Models and servers that several test folders use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from parrot import parrot_gguf
from server_process import ServerProcess, running_server
from tiny_models import tiny_gguf


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says parrot.SAYING and ends."""
    return parrot_gguf(tmp_path_factory.mktemp("parrot"))


@pytest.fixture(scope="session")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that can go on for 16,000 tokens."""
    return tiny_gguf(tmp_path_factory.mktemp("babbler"), name="babbler", context_length=16384)


@pytest.fixture(scope="session")
def parrot_server(parrot: Path) -> Iterator[ServerProcess]:
    with running_server(parrot) as server:
        yield server


@pytest.fixture(scope="session")
def babbler_server(babbler: Path) -> Iterator[ServerProcess]:
    limits = {"max_context": 16384, "max_decode_sequences": 8}
    with running_server(babbler, limits=limits) as server:
        yield server
