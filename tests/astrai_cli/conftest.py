"""Models and servers that several test folders use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parrot import parrot_gguf
from server_process import ServerProcess, running_server
from tiny_models import tiny_gguf

from astrai_cli.config import ExportConfig, ModelConfig
from astrai_cli.loading import RunnableModel, prepare_model
from backends.registry import get_backend

BACKENDS = ["eager", "cpu"]


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says parrot.SAYING and ends."""
    return parrot_gguf(tmp_path_factory.mktemp("parrot"))


@pytest.fixture(scope="session")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that can go on for 16,000 tokens."""
    return tiny_gguf(tmp_path_factory.mktemp("babbler"), name="babbler", context_length=16384)


@pytest.fixture(scope="session", params=BACKENDS)
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], RunnableModel]:
    """Makes a model file ready to run, on one backend after the other."""
    config = ModelConfig(backend=request.param, cache_dir=tmp_path_factory.mktemp("cache"))
    if reason := get_backend(request.param).unavailable():
        pytest.skip(reason)
    return lambda file: prepare_model(str(file), config, ExportConfig(), lambda what, done: None)


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> RunnableModel:
    """The real SmolLM2-135M-Instruct on the cpu backend; exported into the cache once."""
    if reason := get_backend("cpu").unavailable():
        pytest.skip(reason)
    config = ModelConfig(backend="cpu", cache_dir=smollm2_gguf.parent.parent)
    return prepare_model(str(smollm2_gguf), config, ExportConfig(), lambda what, done: None)


@pytest.fixture(scope="session")
def parrot_server(
    parrot: Path, prepared: Callable[[Path], RunnableModel]
) -> Iterator[ServerProcess]:
    model = prepared(parrot)
    with running_server(model.source, model.backend) as server:
        yield server


@pytest.fixture(scope="session")
def babbler_server(
    babbler: Path, prepared: Callable[[Path], RunnableModel]
) -> Iterator[ServerProcess]:
    model = prepared(babbler)
    limits = {"max_context": 16384, "max_decode_sequences": 8}
    with running_server(model.source, model.backend, limits=limits) as server:
        yield server
