"""Compiles the native library for this machine and the installed executorch wheel."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from astrai_cli.errors import BackendUnavailableError, install_command
from astrai_cli.files import file_lock, partial_folder
from backends.base import Progress
from backends.compiled import compiled_dir
from backends.registry import missing_package

SOURCES = Path(__file__).parent / "native"
LIBRARY_NAME = "libastrai_cpu.dylib" if sys.platform == "darwin" else "libastrai_cpu.so"
BUILD_TIMEOUT_SECONDS = 600


def library_path() -> Path:
    """Where the library for this wheel, these sources and this processor is, or would be."""
    return compiled_dir("native") / _build_key() / LIBRARY_NAME


def executorch_version() -> str:
    """Raises BackendUnavailableError where the package is missing."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        raise missing_package("cpu", "executorch") from None


def build_library(progress: Progress) -> Path:
    """Compile the library unless it is there already. Raises BackendUnavailableError."""
    library = library_path()
    if library.is_file():
        return library
    lock = library.parent.with_name(f"{library.parent.name}.lock")
    try:
        with file_lock(lock, lambda: progress("waiting for another build", 0.0)):
            if not library.is_file():
                _compile(library, progress)
    except OSError as error:
        raise BackendUnavailableError(
            f"{library.parent} cannot be written: {error.strerror or error}"
        ) from error
    return library


def _compile(library: Path, progress: Progress) -> None:
    compiler = find_compiler()
    with partial_folder(library.parent) as work:
        progress("configuring", 0.1)
        _run([_tool("cmake"), "-S", str(SOURCES), "-B", str(work / "build"), "-G", "Ninja",
              f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
              f"-DCMAKE_CXX_COMPILER={compiler}",
              f"-DCMAKE_PREFIX_PATH={_executorch_folder() / 'share' / 'cmake'}"])  # fmt: skip
        progress("compiling", 0.3)
        _run([_tool("cmake"), "--build", str(work / "build")])
        done = work / "done"
        done.mkdir()
        shutil.copy2(work / "build" / LIBRARY_NAME, done)
        done.rename(library.parent)
    progress("compiled", 1.0)


def _build_key() -> str:
    """Changes with whatever the compiled library depends on."""
    digest = hashlib.sha256(f"{executorch_version()} {_processor()}".encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in {".cpp", ".h", ".txt"}:
            digest.update(source.name.encode() + source.read_bytes())
    return f"cpu-executorch-{executorch_version()}-{digest.hexdigest()[:16]}"


def _processor() -> str:
    """The instruction sets the compiler may use when told to use this processor's."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _executorch_folder() -> Path:
    spec = find_spec("executorch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        if (Path(folder) / "share" / "cmake" / "executorch-config.cmake").is_file():
            return Path(folder)
    raise BackendUnavailableError(
        f"executorch {executorch_version()} has no CMake package; "
        "pip install --force-reinstall executorch brings it"
    )


def find_compiler() -> str:
    """The C++ compiler to use. Raises BackendUnavailableError where there is none."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    looked_for = repr(named) if named else "c++, g++ or clang++"
    raise BackendUnavailableError(
        f"backend 'cpu' needs a C++17 compiler and found no {looked_for}: install g++ "
        "(Debian: apt-get install g++; macOS: xcode-select --install), or set CXX"
    )


def _tool(name: str) -> str:
    """A build tool of the Python environment, else of the machine."""
    beside_python = Path(sys.executable).parent / name
    if beside_python.is_file():
        return str(beside_python)
    found = shutil.which(name)
    if found is None:
        raise BackendUnavailableError(
            f"backend 'cpu' needs {name!r} to build: {install_command('cpu')}"
        )
    return found


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendUnavailableError(
            f"building the cpu backend took over {BUILD_TIMEOUT_SECONDS} s"
        ) from None
    if result.returncode != 0:
        print(result.stdout, file=sys.stderr)
        raise BackendUnavailableError(
            f"building the cpu backend failed: {Path(command[0]).name} ended with "
            f"{result.returncode}; its output is above"
        )
