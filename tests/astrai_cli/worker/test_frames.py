from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from astrai_cli import errors
from astrai_cli.engine.request import (
    Finish,
    GenerationRequest,
    ImageInput,
    Piece,
    SamplingParams,
    TokenLogprob,
    Usage,
)
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
    FrameCodec,
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

ids = st.integers(0, 2**63 - 1)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
seconds = st.none() | st.floats(0, 1e6)
biases = st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 100))
logprobs = st.lists(
    st.builds(TokenLogprob, ids, st.floats(-9999, 0), st.lists(biases, max_size=3).map(tuple)),
    max_size=2,
).map(tuple)
sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    seed=st.none() | ids,
    repetition_penalty=st.floats(0.01, 100),
    logit_bias=st.lists(biases, max_size=3).map(tuple),
)
requests = st.builds(
    GenerationRequest,
    prompt=token_ids,
    sampling=sampling,
    logprobs=st.none() | st.integers(0, 20),
    session_id=st.none() | texts,
    max_tokens=st.none() | st.integers(1, 2**31 - 1),
    stop=st.lists(texts, max_size=2).map(tuple),
    images=st.lists(st.builds(ImageInput, st.binary(max_size=20), ids), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
)
commands = st.one_of(
    st.builds(Generate, ids, requests, st.integers(1, 128)),
    st.builds(EndSession, ids, texts, st.sampled_from(["reset", "delete"])),
    st.builds(Cancel, ids),
    st.builds(StatsQuery, ids),
    st.just(Shutdown()),
)
finishes = st.builds(
    Finish,
    st.sampled_from(["stop", "length", "cancelled", "error"]),
    st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
    matched_stop=st.none() | texts,
    error=st.none() | texts,
    retry_after=seconds,
)
reports = st.one_of(
    st.just(Hello(ModelInfo("name", "llama", "cpu", 49152, 4096, 16384, 28), Capacity(64, 8, 64))),
    st.builds(PieceReport, ids, st.builds(Piece, texts, token_ids, logprobs)),
    st.builds(FinishReport, ids, finishes),
    st.builds(ErrorReport, st.none() | ids, texts, texts, st.none() | texts, seconds),
    st.builds(Done, ids),
    st.builds(SessionEvicted, texts),
    st.builds(StatsReport, ids, st.dictionaries(texts, st.integers(-9, 9), max_size=3)),
)


def feed_in_parts(decoder: FrameDecoder[Report], stream: bytes, cuts: list[int]) -> list[object]:
    found: list[object] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        found += decoder.feed(stream[start:end])
    return found


@given(st.lists(commands, max_size=4))
def test_commands_survive_the_wire(sent: list[Command]) -> None:
    assert FrameDecoder(COMMANDS).feed(b"".join(map(COMMANDS.encode, sent))) == sent


@given(st.lists(reports, max_size=4), st.lists(st.integers(0, 10**6), max_size=8))
def test_any_split_of_the_stream_gives_the_same_frames(sent: list[Report], cuts: list[int]) -> None:
    stream = b"".join(map(REPORTS.encode, sent))
    assert feed_in_parts(FrameDecoder(REPORTS), stream, cuts) == sent


@settings(max_examples=200)
@given(st.binary(max_size=200), st.lists(st.integers(0, 10**6), max_size=8))
def test_any_bytes_are_survived_and_split_alike(junk: bytes, cuts: list[int]) -> None:
    small: FrameCodec[Report] = FrameCodec(TypeAdapter(Report), 50)
    stream = junk + b"\n" + b'{"type":"stats","id":7}\n'
    parts = feed_in_parts(FrameDecoder(small), stream, cuts)
    whole = FrameDecoder(small).feed(stream)
    assert list(map(repr, parts)) == list(map(repr, whole))
    assert whole[-1] == StatsReport(7)


@pytest.mark.parametrize(
    "line",
    [
        b"[[[[",
        b"[" * 100_000,
        b"null",
        b'{"type":"dance","id":1}',
        b'{"id":1}',
        b'{"type":"cancel"}',
        b'{"type":"cancel","id":"1"}',
        b'{"type":"cancel","id":1.5}',
        b'{"type":"generate","id":1,"request":{"prompt":["a"]}}',
        b'{"type":"cancel","id":1}x',
        b'{"type":"generate","id":1,"request":{"prompt":[1],"images":[{"data":"!","position":0}]}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_frame_is_one_error_and_the_next_frame_is_read(line: bytes) -> None:
    error, frame = FrameDecoder(COMMANDS).feed(line + b"\n" + COMMANDS.encode(Cancel(2)))
    assert isinstance(error, FrameError)
    assert "\n" not in str(error)
    assert frame == Cancel(2)


def test_the_limit_counts_the_newline() -> None:
    line = COMMANDS.encode(Cancel(123))
    exact: FrameCodec[Command] = FrameCodec(TypeAdapter(Command), len(line))
    short: FrameCodec[Command] = FrameCodec(TypeAdapter(Command), len(line) - 1)
    assert FrameDecoder(exact).feed(line) == [Cancel(123)]
    assert exact.encode(Cancel(123)) == line
    (error,) = FrameDecoder(short).feed(line)
    assert isinstance(error, FrameError)
    with pytest.raises(FrameError, match="over the limit"):
        short.encode(Cancel(123))


def test_an_endless_line_takes_no_memory() -> None:
    small: FrameCodec[Command] = FrameCodec(TypeAdapter(Command), 100)
    decoder = FrameDecoder(small)
    for _ in range(1000):
        assert decoder.feed(b"x" * 60) == []
        assert len(decoder._line) < 100
    (error, frame) = decoder.feed(b"\n" + small.encode(Shutdown()))
    assert isinstance(error, FrameError)
    assert frame == Shutdown()


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidInputError("bad", param="top_p"),
        errors.ContextOverflowError("long", param="messages"),
        errors.ContextOverflowError("long", need=errors.ContextNeed(70, 5, 64)),
        errors.ModelFileError("file"),
        errors.BackendUnavailableError("backend"),
        errors.OverloadedError("full", retry_after=7.5),
        errors.SessionBusyError("busy"),
        errors.ExecutionError("step"),
        FrameError("frame"),
    ],
)
def test_errors_arrive_as_the_class_they_were(error: errors.AstraiError) -> None:
    (report,) = FrameDecoder(REPORTS).feed(REPORTS.encode(ErrorReport.of(error, 3)))
    assert isinstance(report, ErrorReport)
    again = report.error()
    assert type(again) is type(error)
    assert str(again) == str(error)
    for name in ("param", "retry_after", "need"):
        assert getattr(again, name, None) == getattr(error, name, None)


def test_a_message_of_any_length_fits_a_report() -> None:
    report = ErrorReport.of(errors.InvalidInputError("\0" * 2 * REPORTS.limit), 1)
    assert FrameDecoder(REPORTS).feed(REPORTS.encode(report)) == [report]


def test_an_unknown_code_is_still_an_error_of_ours() -> None:
    assert type(ErrorReport(None, "from_the_future", "m").error()) is errors.AstraiError
