"""The `astrai` command: its subcommands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from astrai_cli.commands.bench import bench
from astrai_cli.commands.bench_serve import bench_serve
from astrai_cli.commands.build import build
from astrai_cli.commands.chat import chat
from astrai_cli.commands.config import config
from astrai_cli.commands.export import export
from astrai_cli.commands.help import PlainHelpCommand
from astrai_cli.commands.inspect import inspect
from astrai_cli.commands.pull import pull
from astrai_cli.commands.serve import serve
from astrai_cli.errors import AstraiError

INTERRUPTED = 130
UNEXPECTED = 1

_EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 bad usage or value, 3 bad model file or artifact, "
    "4 backend unavailable, 5 download failed, 6 the server at --url failed, 130 interrupted."
)


class _Commands(TyperGroup):
    """Finds commands of two words too: `bench serve` beside `bench MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        name = " ".join(args[:2])
        if name in self.commands:
            args = [name, *args[2:]]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="astrai",
    cls=_Commands,
    epilog=_EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print("astrai", installed_version("astrai"))
        raise typer.Exit


@app.callback()
def _astrai(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Turn a model file into a server that many clients use at once."""


_COMMANDS = {
    chat: "astrai chat smollm2-135m\n  astrai chat --url http://127.0.0.1:8000 'Name three seas.'",
    serve: "astrai serve smollm2-135m --port 8000",
    pull: "astrai pull smollm2-135m",
    export: "astrai export smollm2-135m --backend cpu -o smollm2",
    build: "astrai build --backend cpu",
    bench: "astrai bench smollm2-135m --batch-sizes 1,8 --json",
    bench_serve: "astrai bench serve --url http://127.0.0.1:8000 --request-rate 4",
    inspect: "astrai inspect smollm2-135m --json",
    config: "ASTRAI_PORT=9000 astrai config --max-context 2048",
}
for command, example in _COMMANDS.items():
    name = command.__name__.replace("_", " ")
    # The mark keeps the lines of an example as they are.
    app.command(name, cls=PlainHelpCommand, epilog=f"\b\nExample:\n  {example}")(command)


def main() -> None:
    """Run the command line; exits with the code that `astrai --help` lists."""
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except AstraiError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; Python must not try to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except Exception as error:
        if os.environ.get("ASTRAI_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return _fail(f"{what} (unexpected; ASTRAI_DEBUG=1 shows the traceback)", UNEXPECTED)


def _fail(message: str, code: int) -> int:
    # Without a subcommand Typer has printed the help already, and has no more to say.
    if message:
        print("astrai:", " ".join(message.split()), file=sys.stderr)
    return code
