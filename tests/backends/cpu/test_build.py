"""Building the native library, and what is said where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from astrai_cli.errors import BackendUnavailableError
from backends.cpu import build, native
from backends.registry import get_backend


def silent(what: str, fraction: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources that is built in their place."""
    copy = shutil.copytree(build.SOURCES, tmp_path / "native")
    monkeypatch.setattr(build, "SOURCES", copy)
    return copy


def refusal() -> str:
    with pytest.raises(BackendUnavailableError) as caught:
        build.build_library(silent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left_in(cache: Path) -> list[str]:
    """Names of the files below the cache folder, locks left out."""
    return [file.name for file in cache.rglob("*") if file.is_file() and file.suffix != ".lock"]


class TestWithoutACompiler:
    @pytest.fixture(autouse=True)
    def no_programs(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))

    def test_says_what_to_install(self, cache: Path) -> None:
        message = refusal()
        assert "needs a C++17 compiler" in message
        assert "apt-get install g++" in message
        assert get_backend("cpu").unavailable() == message
        assert left_in(cache) == []

    def test_names_what_cxx_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "nosuchc++")
        assert "found no 'nosuchc++'" in refusal()

    def test_a_built_library_needs_none(self) -> None:
        library = build.library_path()
        library.parent.mkdir(parents=True)
        library.touch()
        assert get_backend("cpu").unavailable() is None
        assert build.build_library(silent) == library


def test_cxx_is_preferred(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "my-compiler"
    mine.write_text("#!/bin/sh\nexit 1\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert build.find_compiler() == str(mine)


class TestWhereTheLibraryIs:
    def test_changes_with_all_it_is_made_of(
        self, cache: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = [build.library_path()]
        assert build.library_path() == paths[0]

        (sources / "notes.md").write_text("no source")
        assert build.library_path() == paths[0]
        for source in ("attention.cpp", "kv_cache.h", "CMakeLists.txt"):
            with (sources / source).open("a") as file:
                file.write("\n")
            paths.append(build.library_path())
        monkeypatch.setattr(build, "version", lambda package: "9.9.9")
        paths.append(build.library_path())
        monkeypatch.setattr(build, "_processor", lambda: "flags: fpu vme")
        paths.append(build.library_path())

        assert len(set(paths)) == len(paths)
        assert "executorch-9.9.9" in str(paths[-1])
        assert all(path.is_relative_to(cache) for path in paths)

    def test_home_is_expanded(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASTRAI_CACHE_DIR", "~/somewhere")
        assert build.library_path().is_relative_to(Path.home() / "somewhere" / "native")

    def test_a_missing_wheel_is_named(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(package: str) -> str:
            raise build.PackageNotFoundError(package)

        monkeypatch.setattr(build, "version", missing)
        assert "'executorch'" in refusal()
        assert "pip install '.[cpu]'" in str(get_backend("cpu").unavailable())


def test_a_failed_build_leaves_nothing(
    cache: Path, sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (sources / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.28)\n"
        "project(astrai_cpu LANGUAGES CXX)\n"
        "add_library(astrai_cpu SHARED broken.cpp)\n"
    )
    (sources / "broken.cpp").write_text("#error broken on purpose\n")
    message = refusal()
    assert "building the cpu backend failed: cmake ended with" in message
    assert "broken on purpose" in capfd.readouterr().err
    assert left_in(cache) == []
    assert not build.library_path().parent.exists()


def test_a_cache_folder_that_cannot_be_one(cache: Path) -> None:
    cache.write_text("a file")
    assert str(cache) in refusal()


@pytest.mark.parametrize("content", [b"not a library\n", b"\x7fELF" + bytes(60)])
def test_a_library_that_cannot_be_loaded(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / build.LIBRARY_NAME
    library.write_bytes(content)
    with pytest.raises(BackendUnavailableError) as caught:
        native.load(library)
    assert str(library) in str(caught.value)
    assert "astrai build --backend cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


# In a process of its own, since operators can be registered once.
BUILD = """
from backends.cpu import build, native
library = build.build_library(lambda what, done: print(what))
native.load(library)
print(library)
"""


def test_two_builds_at_once_compile_once(cache: Path, native_library: Path) -> None:
    """`native_library` tells whether there is anything to build with."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for _ in range(2)
    ]
    outputs = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(lines.count("compiled") for lines in outputs) == [0, 1]
    assert {lines[-1] for lines in outputs} == {str(build.library_path())}
    assert left_in(cache) == [build.LIBRARY_NAME]
