"""`astrai chat`: talk to a model in the terminal, or ask it one question."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from astrai_cli.commands.parameters import with_settings
from astrai_cli.commands.prepare import MODEL_HELP, prepare
from astrai_cli.config import Config
from astrai_cli.errors import InvalidInputError, ModelFileError
from astrai_cli.settings import Settings

if TYPE_CHECKING:
    from astrai_cli.chat.source import Source
    from astrai_cli.loading import RunnableModel

DEFAULT_MODEL = "smollm2-135m"


@with_settings("chat", "sampling", "model", "limits")
def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"{MODEL_HELP} With --url: the id of one of the server's models; any other "
            "lone argument is the QUESTION. "
            f"When left out: {DEFAULT_MODEL}, or the server's first.",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="Print the answer to this and leave."),
    ] = None,
    *,
    settings: Settings,
) -> None:
    """Talk to a model on this machine or behind an OpenAI-compatible server.

    When piped, stdin is one question, and the answer is all that is printed.
    """
    from astrai_cli.chat.repl import answer_plainly, read_piped_question, run_repl
    from astrai_cli.chat.session import ChatSession

    config = settings.config
    if config.chat.url is not None and model is not None and question is None:
        model, question = _model_and_question(model, config.chat.url, config)
    if question is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        question = read_piped_question()
    if question is not None and not question.strip():
        raise InvalidInputError("the question is empty")
    with closing(_open_source(model, config)) as source:
        session = ChatSession(source, config.sampling, config.chat.system)
        if question is None:
            run_repl(session, config.chat.history_file)
        else:
            answer_plainly(session, question)


def _model_and_question(word: str, url: str, config: Config) -> tuple[str, str | None]:
    """MODEL and QUESTION where a server is asked and one of them is given alone."""
    from astrai_cli.chat.remote import RemoteSource

    with closing(RemoteSource(url, word, config.chat)) as server:
        listed = server.list_models()
    return (word, None) if word in listed else (listed[0], word)


def _open_source(model: str | None, config: Config) -> Source:
    if config.chat.url is not None:
        from astrai_cli.chat.remote import RemoteSource

        return RemoteSource(config.chat.url, model, config.chat)
    from astrai_cli.chat.local import LocalSource
    from astrai_cli.loading import open_engine

    engine = open_engine(_prepare(model or DEFAULT_MODEL, config), config.limits)
    try:
        return LocalSource(engine)
    except BaseException:
        engine.shutdown()
        raise


def _prepare(model: str, config: Config) -> RunnableModel:
    try:
        return prepare(model, config)
    except ModelFileError as error:
        if os.path.exists(model):
            raise
        hint = "the first argument is the MODEL, the second the QUESTION"
        raise ModelFileError(f"{error}; {hint}") from error
