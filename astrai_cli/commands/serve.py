"""`astrai serve`: answer HTTP clients."""

from __future__ import annotations

from astrai_cli.commands.parameters import with_settings
from astrai_cli.commands.prepare import ModelArgument, prepare
from astrai_cli.settings import Settings


@with_settings("model", "limits", "serve")
def serve(model: ModelArgument, *, settings: Settings) -> None:
    """Serve a model to OpenAI and Anthropic clients until Ctrl-C or SIGTERM."""
    from astrai_cli.serving.server import run_server

    config = settings.config
    runnable = prepare(model, config)
    run_server(
        runnable.source,
        runnable.backend,
        config.limits,
        config.serve,
        lambda url: print(f"serving {model} at {url} (chat page; API below /v1)", flush=True),
    )
