"""The worker process: an engine behind frames. Run as `python -m astrai_cli.worker.process JSON`.

Commands come on stdin and reports go to the original stdout; logs go to stderr.
The process ends when its stdin does, so it never outlives the server. SIGTERM
lets running requests end first; a second one ends it at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from functools import partial
from types import FrameType

from astrai_cli.engine.engine import InferenceEngine, RequestHandle
from astrai_cli.engine.limits import EngineLimits
from astrai_cli.engine.request import Event, Finish, GenerationRequest, Piece
from astrai_cli.errors import (
    AstraiError,
    EngineUnavailableError,
    ExecutionError,
    InvalidInputError,
    RequestCancelledError,
)
from astrai_cli.loading import RunnableModel, open_engine
from astrai_cli.logs import configure_logging
from astrai_cli.worker.channel import PipeWriter, claim_stdout
from astrai_cli.worker.config import WorkerConfig
from astrai_cli.worker.frames import (
    COMMANDS,
    REPORTS,
    Cancel,
    Capacity,
    Command,
    Done,
    EndSession,
    ErrorReport,
    FinishReport,
    FrameDecoder,
    FrameError,
    Generate,
    Hello,
    ModelInfo,
    PieceReport,
    Report,
    SessionEvicted,
    Shutdown,
    StatsQuery,
    StatsReport,
)

log = logging.getLogger(__name__)

READ_BYTES = 2**16


class Worker:
    """Obeys commands and reports what the engine does."""

    def __init__(self, engine: InferenceEngine, pipe: PipeWriter, max_request_bytes: int) -> None:
        self._engine = engine
        self._pipe = pipe
        self._decoder = FrameDecoder(COMMANDS.limited_to(max_request_bytes))
        self._lock = threading.Lock()
        # None: submitted, and its handle is not here yet.
        self._running: dict[int, RequestHandle | None] = {}
        # Requests of which a piece could not be sent, and why.
        self._lost: dict[int, str] = {}
        self._draining = False
        self.drained = threading.Event()

    def read(self, fd: int) -> None:
        """Obey the commands that arrive on `fd`; at its end, exit the process."""
        while data := os.read(fd, READ_BYTES):
            for command in self._decoder.feed(data):
                try:
                    self._obey(command)
                # One command must not end the thread that all others need.
                except Exception:
                    log.exception("a command failed")
        # Nobody is left to answer to, so nothing is worth an orderly end.
        os._exit(0)

    def drain(self) -> None:
        """Refuse new requests; set `drained` when the running ones have ended."""
        with self._lock:
            self._draining = True
            if not self._running:
                self.drained.set()

    def _obey(self, command: Command | FrameError) -> None:
        match command:
            case Generate():
                ids = range(command.id, command.id + command.n)
                try:
                    self._generate(ids, command.request)
                except Exception as error:
                    self._refuse(ids, error)
            case Cancel():
                with self._lock:
                    handle = self._running.get(command.id)
                if handle is not None:
                    handle.cancel()
            case StatsQuery():
                self._report(StatsReport(command.id, self._engine.get_stats()), force=True)
            case EndSession():
                self._end_session(command)
            case Shutdown():
                self.drain()
            case FrameError():
                self._report(ErrorReport.of(command))

    def _refuse(self, ids: range, error: Exception) -> None:
        if not isinstance(error, AstraiError):
            log.error("a request failed before it began", exc_info=error)
            error = ExecutionError("the request could not be prepared")
        for answer_id in ids:
            self._report(ErrorReport.of(error, answer_id), force=True)

    def _generate(self, ids: range, request: GenerationRequest) -> None:
        with self._lock:
            if self._draining:
                raise EngineUnavailableError("the engine is shutting down")
            for answer_id in ids:
                if answer_id in self._running:
                    raise InvalidInputError(f"request id {answer_id} is in use")
            self._running.update(dict.fromkeys(ids))
        try:
            sinks = [partial(self._emit, answer_id) for answer_id in ids]
            handles = self._engine.submit_choices(request, sinks)
        except BaseException:
            for answer_id in ids:
                self._end(answer_id)
            raise
        with self._lock:
            for answer_id, handle in zip(ids, handles, strict=True):
                if answer_id in self._running:
                    self._running[answer_id] = handle

    def _end_session(self, command: EndSession) -> None:
        try:
            if command.how == "reset":
                self._engine.reset_session(command.session_id)
            else:
                self._engine.delete_session(command.session_id)
        except AstraiError as error:
            self._report(ErrorReport.of(error, command.id), force=True)
        else:
            self._report(Done(command.id), force=True)

    def _emit(self, request_id: int, event: Event) -> None:
        """The engine's sink; runs in its thread."""
        if isinstance(event, Piece):
            self._emit_piece(request_id, event)
        else:
            self._emit_finish(request_id, event)

    def _emit_piece(self, request_id: int, piece: Piece) -> None:
        if request_id in self._lost:
            return
        try:
            if self._report(PieceReport(request_id, piece)):
                return
            self._lost[request_id] = "the server reads too slowly: the worker's buffer is full"
        except FrameError as error:
            self._lost[request_id] = str(error)
        with self._lock:
            handle = self._running[request_id]
        if handle is not None:
            handle.cancel()

    def _emit_finish(self, request_id: int, finish: Finish) -> None:
        if reason := self._lost.pop(request_id, None):
            error = RequestCancelledError(reason)
            self._report(ErrorReport.of(error, request_id), force=True)
        else:
            self._report_finish(request_id, finish)
        self._end(request_id)

    def _report_finish(self, request_id: int, finish: Finish) -> None:
        try:
            self._report(FinishReport(request_id, finish), force=True)
        except FrameError as error:
            self._report(ErrorReport.of(error, request_id), force=True)

    def _end(self, request_id: int) -> None:
        with self._lock:
            del self._running[request_id]
            if self._draining and not self._running:
                self.drained.set()

    def _report(self, report: Report, *, force: bool = False) -> bool:
        return self._pipe.write(REPORTS.encode(report), force=force)


def hello_of(engine: InferenceEngine) -> Hello:
    info = engine.info
    limits = EngineLimits.resolve(engine.limits, info)
    return Hello(
        ModelInfo(
            name=info.spec.name,
            architecture=info.spec.architecture,
            backend=info.backend,
            vocab_size=info.spec.vocab_size,
            max_context=info.max_context,
            max_image_patches=info.max_vision_patches,
            image_cell=0 if info.vision is None else info.vision.cell_size,
        ),
        Capacity(limits.max_requests, limits.max_sequences, limits.max_sessions),
    )


def run(config: WorkerConfig, pipe: PipeWriter) -> None:
    """Serve until drained. Raises AstraiError when the engine cannot be opened."""
    model = RunnableModel(config.source, config.backend)

    def report_eviction(session_id: str) -> None:
        pipe.write(REPORTS.encode(SessionEvicted(session_id)), force=True)

    with open_engine(model, config.limits, report_eviction) as engine:
        if engine.info.vision is not None or "max_image_bytes" in config.limits.model_fields_set:
            config.check_image_fits()
        worker = Worker(engine, pipe, config.max_request_bytes)
        pipe.write(REPORTS.encode(hello_of(engine)))
        threading.Thread(target=worker.read, args=(0,), name="commands", daemon=True).start()
        try:
            worker.drained.wait()
        except SystemExit:
            worker.drain()
            worker.drained.wait()


def _exit_on_signal(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def main() -> int:
    pipe = PipeWriter(claim_stdout())
    config = WorkerConfig.model_validate_json(sys.argv[1])
    configure_logging(config.log_level, "worker")
    signal.signal(signal.SIGTERM, _exit_on_signal)
    # Ctrl-C reaches the whole terminal; the server decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run(config, pipe)
    except AstraiError as error:
        pipe.write(REPORTS.encode(ErrorReport.of(error)))
        return error.exit_code
    finally:
        pipe.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
