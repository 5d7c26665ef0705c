"""The worker process itself, spoken to over its pipes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M
from parrot import SAYING

from astrai_cli.config import MAX_IMAGE_BYTES, MAX_REQUEST_BYTES, LimitsConfig
from astrai_cli.engine.engine import RequestHandle
from astrai_cli.engine.request import Finish, GenerationRequest, ImageInput, SamplingParams, Usage
from astrai_cli.engine.task import Sink
from astrai_cli.models.text import TextModel
from astrai_cli.worker.config import WorkerConfig
from astrai_cli.worker.frames import (
    COMMANDS,
    REPORTS,
    Cancel,
    Capacity,
    Command,
    ErrorReport,
    FinishReport,
    Generate,
    Hello,
    PieceReport,
    Report,
    Shutdown,
    StatsQuery,
    StatsReport,
)
from astrai_cli.worker.process import Worker

ENDLESS = GenerationRequest((5, 6, 7), SamplingParams(seed=1), ignore_eos=True)


class WorkerProcess:
    def __init__(self, source: Path, max_request_bytes: int, **limits: object) -> None:
        config = WorkerConfig(
            source=source,
            backend="eager",
            limits=LimitsConfig(threads=1, **limits),
            max_request_bytes=max_request_bytes,
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "astrai_cli.worker.process",
                config.model_dump_json(exclude_unset=True),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, command: Command) -> None:
        self.write(COMMANDS.encode(command))

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> Report:
        assert self.process.stdout is not None
        return REPORTS.parse(self.process.stdout.readline().rstrip(b"\n"))

    def read_until(self, wanted: Callable[[Report], bool]) -> Report:
        while not wanted(report := self.read()):
            pass
        return report

    def finish_of(self, request_id: int) -> Finish:
        report = self.read_until(lambda each: isinstance(each, FinishReport))
        assert isinstance(report, FinishReport)
        assert report.id == request_id
        return report.finish


@contextmanager
def running(
    source: Path, max_request_bytes: int = MAX_REQUEST_BYTES, **limits: object
) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(source, max_request_bytes, **limits)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def shared(babbler: Path) -> Iterator[WorkerProcess]:
    """A worker for tests that leave it as it was."""
    with running(babbler, max_context=16384) as worker:
        assert isinstance(worker.read(), Hello)
        yield worker


@pytest.fixture
def babbling(babbler: Path) -> Iterator[WorkerProcess]:
    """A worker in the midst of an answer that has no end."""
    with running(babbler, max_context=16384) as worker:
        worker.send(Generate(1, ENDLESS))
        worker.read_until(lambda each: isinstance(each, PieceReport))
        yield worker


def test_a_life_hello_answer_stats_shutdown(parrot: Path) -> None:
    with running(parrot, max_inflight_requests=3) as worker:
        hello = worker.read()
        assert isinstance(hello, Hello)
        assert hello.model.backend == "eager"
        assert hello.model.max_context == 512
        assert hello.capacity.max_inflight_requests == 3

        prompt = tuple(TextModel.read(parrot).encode_prompt("<|im_start|>assistant\n"))
        worker.send(Generate(1, GenerationRequest(prompt, SamplingParams(temperature=0.0))))
        said = ""
        while isinstance(report := worker.read(), PieceReport):
            said += report.piece.text
        assert said == SAYING
        assert isinstance(report, FinishReport)
        assert report.finish.reason == "stop"

        worker.send(StatsQuery(2))
        stats = worker.read()
        assert isinstance(stats, StatsReport)
        assert stats.stats["active"] == 0

        worker.send(Shutdown())
        assert worker.process.wait(30) == 0


def test_malformed_frames_are_answered_and_survived(shared: WorkerProcess) -> None:
    for line in (b"nonsense\n", b'{"type":"generate","id":1}\n', b"[" * 10_000 + b"\n"):
        shared.write(line)
        report = shared.read()
        assert isinstance(report, ErrorReport)
        assert (report.id, report.code) == (None, "bad_frame")
    shared.send(Generate(1, GenerationRequest((5,), max_tokens=3, ignore_eos=True)))
    assert shared.finish_of(1).usage.completion_tokens == 3


def test_a_frame_over_the_limit_is_answered_and_survived(shared: WorkerProcess) -> None:
    shared.write(b"x" * COMMANDS.limit + b"\n")
    report = shared.read()
    assert isinstance(report, ErrorReport)
    assert str(COMMANDS.limit) in report.message
    shared.send(StatsQuery(1))
    assert isinstance(shared.read(), StatsReport)


def test_the_limit_of_commands_can_be_lowered_and_counts_the_newline(babbler: Path) -> None:
    padded = COMMANDS.encode(StatsQuery(1)).rstrip().ljust(2047) + b"\n"
    with running(babbler, max_request_bytes=2048) as worker:
        assert isinstance(worker.read(), Hello)
        worker.write(padded)
        assert isinstance(worker.read(), StatsReport)
        worker.write(b" " + padded)
        report = worker.read()
        assert isinstance(report, ErrorReport)
        assert "2048" in report.message


def test_an_image_is_answered_and_a_bad_one_refused() -> None:
    prompt = (5, 1020, 6)
    image = ImageInput(IMAGE.read_bytes(), position=1)
    with running(Q4_K_M, mmproj=MMPROJ) as worker:
        hello = worker.read()
        assert isinstance(hello, Hello)
        assert (hello.model.max_image_patches, hello.model.image_cell) == (4096, 28)
        for number in (1, 2):
            worker.send(Generate(number, GenerationRequest(prompt, max_tokens=1, images=(image,))))
            assert worker.finish_of(number).usage.prompt_tokens == 17
        bad = ImageInput(b"GIF89a", position=1)
        worker.send(Generate(3, GenerationRequest(prompt, images=(bad,))))
        report = worker.read()
        assert isinstance(report, ErrorReport)
        assert (report.id, report.message) == (3, "the image is not a JPEG or PNG file")
        worker.send(StatsQuery(4))
        stats = worker.read()
        assert isinstance(stats, StatsReport)
        assert stats.stats["images_encoded"] >= 1


@pytest.mark.parametrize("limits", [{"mmproj": MMPROJ}, {"max_image_bytes": MAX_IMAGE_BYTES}])
def test_requests_must_have_room_for_images(limits: dict[str, object]) -> None:
    needed = 4 * -(-MAX_IMAGE_BYTES // 3) + 1024
    with running(Q4_K_M, max_request_bytes=needed - 1, **limits) as worker:
        report = worker.read()
        assert isinstance(report, ErrorReport)
        assert report.code == "invalid_value"
        assert f"max_request_bytes is {needed - 1}" in report.message
        assert f"max_image_bytes, {MAX_IMAGE_BYTES}, it must be at least {needed}" in report.message
        assert worker.process.wait(30) == 2


def test_the_largest_image_fits_where_it_must() -> None:
    config = WorkerConfig(
        source=Q4_K_M,
        backend="eager",
        limits=LimitsConfig(max_image_bytes=1000),
        max_request_bytes=4 * 334 + 1024,
    )
    config.check_image_fits()
    command = Generate(1, GenerationRequest((5, 1020), images=(ImageInput(b"x" * 1000, 1),)))
    assert len(COMMANDS.encode(command)) <= config.max_request_bytes


def test_the_capacity_is_what_the_engine_admits(babbler: Path) -> None:
    with running(babbler, max_decode_sequences=3, max_queue=2, max_inflight_requests=50) as worker:
        hello = worker.read()
        assert isinstance(hello, Hello)
        assert hello.capacity == Capacity(5, 3, max_sessions=50)


class FailingEngine:
    """Ends every request with an error whose message is of any length."""

    def submit_choices(self, request: GenerationRequest, sinks: list[Sink]) -> list[RequestHandle]:
        for sink in sinks:
            sink(Finish("error", Usage(1, 0), error="x" * REPORTS.limit))
        return [cast(RequestHandle, None)] * len(sinks)


class TrippingEngine:
    """Trips over every request, as nobody expected."""

    def submit_choices(self, request: GenerationRequest, sinks: list[Sink]) -> list[RequestHandle]:
        raise RuntimeError("a detail that is nobody's business")


class ListPipe:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes, *, force: bool = False) -> bool:
        self.lines.append(line)
        return True


def test_an_end_too_large_for_a_report_is_an_error_with_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    commands, write = os.pipe()
    os.write(write, COMMANDS.encode(Generate(3, ENDLESS)))
    pipe = ListPipe()
    worker = Worker(FailingEngine(), pipe, COMMANDS.limit)
    os.close(write)
    with pytest.raises(SystemExit):
        worker.read(commands)
    (report,) = map(REPORTS.parse, pipe.lines)
    assert isinstance(report, ErrorReport)
    assert (report.id, report.code) == (3, "bad_frame")


def test_what_nobody_expected_is_answered_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    commands, write = os.pipe()
    for number in (3, 4):
        os.write(write, COMMANDS.encode(Generate(number, ENDLESS, n=2)))
        os.write(write, COMMANDS.encode(StatsQuery(9)))  # Which this engine does not know.
    pipe = ListPipe()
    worker = Worker(TrippingEngine(), pipe, COMMANDS.limit)
    os.close(write)
    with pytest.raises(SystemExit):
        worker.read(commands)
    reports = [
        report for report in map(REPORTS.parse, pipe.lines) if isinstance(report, ErrorReport)
    ]
    assert [report.id for report in reports] == [3, 4, 4, 5]
    assert {report.code for report in reports} == {"execution_error"}
    assert all("detail" not in report.message for report in reports)
    worker.drain()
    assert worker.drained.is_set()


def test_refused_requests_are_errors_with_their_id(shared: WorkerProcess) -> None:
    shared.send(Generate(1, GenerationRequest(())))
    refused = shared.read()
    assert isinstance(refused, ErrorReport)
    assert (refused.id, refused.code) == (1, "invalid_value")
    shared.send(Generate(2, ENDLESS))
    shared.send(Generate(2, ENDLESS))
    again = shared.read_until(lambda each: isinstance(each, ErrorReport))
    assert isinstance(again, ErrorReport)
    assert again.id == 2
    assert "in use" in again.message
    shared.send(Cancel(2))
    assert shared.finish_of(2).reason == "cancelled"


def test_cancelled_requests_end_and_unknown_ids_are_ignored(shared: WorkerProcess) -> None:
    shared.send(Generate(7, ENDLESS))
    shared.read_until(lambda each: isinstance(each, PieceReport))
    shared.send(Cancel(99))
    shared.send(Cancel(7))
    assert shared.finish_of(7).reason == "cancelled"
    shared.send(Cancel(7))
    shared.send(StatsQuery(8))
    stats = shared.read()
    assert isinstance(stats, StatsReport)
    assert stats.stats["cells_used"] == 0


def test_it_ends_with_its_stdin_even_while_it_answers(babbling: WorkerProcess) -> None:
    assert babbling.process.stdin is not None
    babbling.process.stdin.close()
    assert babbling.process.wait(30) == 0


def refusal(worker: WorkerProcess) -> ErrorReport:
    """Send short requests until the worker has noticed its signal and refuses one."""
    for request_id in itertools.count(2):
        worker.send(Generate(request_id, GenerationRequest((5,), max_tokens=1)))
        report = worker.read_until(
            lambda each, wanted=request_id: getattr(each, "id", None) == wanted
        )
        if isinstance(report, ErrorReport):
            return report
    raise AssertionError


def test_sigterm_lets_answers_end_and_refuses_new_ones(babbling: WorkerProcess) -> None:
    babbling.process.send_signal(signal.SIGINT)
    babbling.process.send_signal(signal.SIGTERM)
    assert refusal(babbling).code == "engine_unavailable"
    babbling.read_until(lambda each: isinstance(each, PieceReport) and each.id == 1)
    babbling.send(Cancel(1))
    assert babbling.finish_of(1).reason == "cancelled"
    assert babbling.process.wait(30) == 0


def test_a_second_sigterm_ends_it_at_once(babbling: WorkerProcess) -> None:
    babbling.process.send_signal(signal.SIGTERM)
    refusal(babbling)
    babbling.process.send_signal(signal.SIGTERM)
    assert babbling.process.wait(30) == 128 + signal.SIGTERM


def test_what_keeps_it_from_starting_is_one_error_and_an_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "not-a-model.gguf"
    file.write_bytes(b"hello")
    with running(file) as worker:
        report = worker.read()
        assert isinstance(report, ErrorReport)
        assert report.code == "model_file_error"
        assert str(file) in report.message
        assert "\n" not in report.message
        assert worker.process.wait(30) == 3
        assert worker.process.stderr is not None
        assert b"Traceback" not in worker.process.stderr.read()
