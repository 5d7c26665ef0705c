"""What the cuda backend computes and how fast, on a machine with a GPU, in a few minutes.

    python benchmarks/gpu_check.py --output results
    python benchmarks/gpu_check.py --device cpu          # a dry run of everything, small

Checks kernels, fused blocks, graphs and drafts against plain PyTorch, and a 4-bit model in
bfloat16 against float32; counts how often the host waits in a step; measures the card's memory
bandwidth and matrix rate, then attention, steps and drafts of a synthetic model of 8B's shape as
shares of them. It prints one table and writes gpu_check.json. It needs what PyTorch's CUDA wheel
brings and astrai's own packages: those that are missing are installed from a folder of wheels,
where one is given. `flashinfer`, `transformers` and `vllm` are compared with where they are
installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = {"numpy": "numpy", "gguf": "gguf", "pydantic": "pydantic", "tokenizers": "tokenizers"}
RESULT_NAME = "gpu_check.json"


def main() -> None:
    arguments = _arguments()
    _install_missing(arguments.wheels)
    sys.path[:0] = [str(Path(__file__).parents[1])]
    from gpu_report import show
    from gpu_sections import SECTIONS, Subject

    from backends.cuda.build import use_cache_folder

    use_cache_folder()
    subject = Subject.on(arguments.device)
    results: dict[str, Any] = {"facts": subject.facts()}
    failed = []
    for name, section in SECTIONS.items():
        started = time.perf_counter()
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            results[name] = section(subject)
        except Exception as error:
            # One part that cannot run leaves the others their time on the machine.
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed.append(name)
        results[name]["seconds"] = round(time.perf_counter() - started, 1)
        if arguments.output is not None:
            arguments.output.mkdir(parents=True, exist_ok=True)
            (arguments.output / RESULT_NAME).write_text(json.dumps(results, indent=2) + "\n")
    print(show(results))
    if failed:
        sys.exit(f"gpu_check: failed: {', '.join(failed)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--output",
        type=Path,
        default=os.environ.get("OUT"),
        help=f"folder for {RESULT_NAME}; $OUT when left out",
    )
    parser.add_argument("--wheels", type=Path, help="folder of wheels, for packages not installed")
    arguments = parser.parse_args()
    if arguments.output is not None:
        arguments.output = Path(arguments.output)
    return arguments


def _install_missing(wheels: Path | None) -> None:
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if not missing:
        return
    if wheels is None:
        sys.exit(f"gpu_check: {', '.join(missing)} are not installed; --wheels FOLDER has them")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(wheels)]
    subprocess.run([*pip, *missing], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
