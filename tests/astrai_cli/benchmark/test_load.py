"""`bench serve`: loads on scripted and real servers, and the numbers made of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import astrai
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import END, ScriptedServer, event, scripted_server, text_chunk
from server_process import ServerProcess

from astrai_cli.benchmark.load.client import LoadClient, Outcome
from astrai_cli.benchmark.load.generator import closed_loop, open_loop, poisson_moments
from astrai_cli.benchmark.load.plot import check_plot
from astrai_cli.benchmark.load.report import LoadReport, Targets
from astrai_cli.benchmark.load.requests import LoadRequest, make_requests
from astrai_cli.config import LoadConfig
from astrai_cli.errors import InvalidInputError

ASK = LoadRequest(({"role": "user", "content": "hi"},), 8)


def hello(_body: dict[str, Any]) -> Iterator[str | bytes]:
    yield "Hel"
    yield "lo"
    yield END


def send(server: ScriptedServer, **options: Any) -> Outcome:
    async def run() -> Outcome:
        async with LoadClient(server.url, **options) as client:
            return await client.send(ASK)

    return asyncio.run(run())


def test_an_answer_is_timed_and_counted_by_the_servers_usage() -> None:
    with scripted_server(hello) as server:
        outcome = send(server, fields={"temperature": 0})
    assert outcome.error is None
    assert outcome.text == "Hello"
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (3, 2)
    assert len(outcome.text_times) == 2
    assert outcome.started < outcome.text_times[0] <= outcome.text_times[1] < outcome.ended
    (body,) = server.bodies
    assert body["model"] == "scripted"
    assert body["max_tokens"] == 8
    assert body["stream_options"] == {"include_usage": True}
    assert body["temperature"] == 0


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ([text_chunk("a")], "cut off"),
        ([text_chunk("a"), event({"error": {"message": "no"}})], "error in the stream"),
        ([b"data: {nonsense\n\n"], "malformed stream"),
        ([b"data: " + b"x" * 2**21], "malformed stream"),
    ],
)
def test_bad_ends_are_errors_by_kind(said: list[bytes], error: str) -> None:
    with scripted_server(lambda _body: said) as server:
        assert send(server).error == error


def test_refusals_and_silence_are_errors_by_kind() -> None:
    def silent(_body: dict[str, Any]) -> Iterator[bytes]:
        time.sleep(1)
        yield END

    with scripted_server(silent) as server:
        assert send(server, timeout=0.1).error == "timeout"

    async def refused() -> str | None:
        with scripted_server(hello) as server:
            async with LoadClient(server.url) as client:
                server.status = 429
                refusal = await client.send(ASK)
        assert refusal.error == "HTTP 429"
        return refusal.error

    asyncio.run(refused())


class CountingClient(LoadClient):
    """Answers after a moment and counts how many are asked at once."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def send(self, request: LoadRequest) -> Outcome:
        started = time.perf_counter()
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        return Outcome(started, time.perf_counter())


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    client = CountingClient()
    outcomes: list[Outcome] = []
    asyncio.run(closed_loop(client, [ASK] * 50, 4, math.inf, outcomes.append))
    assert (len(outcomes), client.most) == (50, 4)
    outcomes.clear()
    asyncio.run(closed_loop(client, [ASK] * 50, 4, 0.0, outcomes.append))
    assert len(outcomes) == 4


def test_an_open_loop_does_not_wait_for_answers() -> None:
    client = CountingClient()
    outcomes: list[Outcome] = []
    asyncio.run(open_loop(client, [ASK] * 5, [0.0] * 5, outcomes.append))
    assert (len(outcomes), client.most) == (5, 5)


def test_arrivals_are_those_of_a_poisson_process() -> None:
    moments = list(itertools.islice(poisson_moments(20.0, math.inf, 7), 10_001))
    gaps = np.diff(moments)
    assert moments[0] == 0.0
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.05)
    assert list(itertools.islice(poisson_moments(20.0, math.inf, 7), 10)) == moments[:10]
    assert max(poisson_moments(20.0, 3.0, 7)) <= 3.0


def words(request: LoadRequest) -> list[int]:
    return [len(message["content"].split()) for message in request.messages]


def test_random_prompts_have_the_lengths_asked_for_and_repeat_with_their_seed() -> None:
    config = LoadConfig(requests=40, prompt_words=(3, 9), shared_prefix=20, answer_tokens=5)
    requests = make_requests(config)
    assert {tuple(words(each)) for each in requests} == {(20, 3), (20, 9)}
    assert len({each.messages[0]["content"] for each in requests}) == 1
    assert len({each.messages[1]["content"] for each in requests}) == 40
    assert {each.max_tokens for each in requests} == {5}
    assert make_requests(config) == requests
    assert make_requests(config.model_copy(update={"load_seed": 1})) != requests


def test_prompts_of_a_file_are_repeated_until_there_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one", "max_tokens": 3}\n\n{"prompt": "two"}\n')
    requests = make_requests(LoadConfig(requests=3, prompts=file, answer_tokens=9))
    assert [(each.messages[0]["content"], each.max_tokens) for each in requests] == [
        ("one", 3),
        ("two", 9),
        ("one", 3),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no prompt"),
        ('{"prompt": "a"}\n{"prompt": 5}\n', "line 2: prompt: "),
        ('{"prompt": "a", "max_tokens": 0}\n', "line 1: max_tokens: "),
        ("nonsense\n", "line 1: "),
    ],
)
def test_a_bad_line_is_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidInputError, match=message):
        make_requests(LoadConfig(prompts=file))


def outcome(first: float, step: float, n_tokens: int, error: str | None = None) -> Outcome:
    """An answer whose first token comes after `first`, and each other one `step` later."""
    times = tuple(first + step * index for index in range(n_tokens))
    return Outcome(0.0, times[-1], times, "", 10, n_tokens, error)


def test_a_report_has_throughput_percentiles_and_goodput() -> None:
    outcomes = [outcome(0.1 * n, 0.02, 11) for n in range(1, 10)]
    outcomes.append(outcome(0.1, 0.5, 20, "cut off"))
    report = LoadReport.of(outcomes, Targets(ttft=0.5))
    assert (report.requests, report.completed, report.errors) == (10, 9, {"cut off": 1})
    assert report.seconds == pytest.approx(0.1 + 19 * 0.5)
    assert report.output_tokens_per_second == pytest.approx(99 / report.seconds)
    ttft, tpot = report.distributions["ttft"], report.distributions["tpot"]
    assert ttft is not None
    assert tpot is not None
    assert ttft.percentiles == pytest.approx({50: 0.5, 90: 0.82, 99: 0.892})
    assert tpot.mean == pytest.approx(0.02)
    assert report.good_requests == 5
    assert report.goodput == pytest.approx(5 / report.seconds)
    assert LoadReport.of(outcomes, Targets()).goodput is None


@given(st.lists(st.floats(0.001, 10), min_size=1), st.floats(0.001, 10))
def test_goodput_counts_answers_within_the_target(times: list[float], target: float) -> None:
    outcomes = [outcome(each, 0.1, 2) for each in times]
    report = LoadReport.of(outcomes, Targets(ttft=target))
    assert report.good_requests == sum(each <= target for each in times)
    assert LoadReport.of(outcomes, Targets(ttft=11, tpot=0.05)).good_requests == 0


def test_the_command_measures_a_real_server(parrot_server: ServerProcess, tmp_path: Path) -> None:
    arguments: list[str | Path] = ["bench", "serve", "--url", parrot_server.url]
    arguments += ["--requests", "6", "--prompt-words", "4,8", "--slo-ttft-ms", "1000000000"]
    plot = tmp_path / "plot.png"
    done = astrai(*arguments, "--concurrency", "2", "--plot", plot, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["requests"], report["completed"], report["errors"]) == (6, 6, {})
    assert report["good_requests"] == 6
    assert report["completion_tokens"] > 6
    for series in report["distributions"].values():
        assert 0 < series["p50"] <= series["p90"] <= series["p99"]
    assert plot.read_bytes().startswith(b"\x89PNG")

    done = astrai(*arguments, "--request-rate", "1000", cwd=tmp_path)
    assert "6 of 6" in done.stdout
    assert "time to first token" in done.stdout


def test_a_server_that_answers_nothing_is_an_error_after_the_report(tmp_path: Path) -> None:
    with scripted_server(lambda _body: [text_chunk("a")]) as server:
        done = astrai("bench", "serve", "--url", server.url, "--requests", "3", cwd=tmp_path)
    assert done.returncode == 6
    assert "3 cut off" in done.stdout
    assert "none of 3 requests" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "needs the --url"),
        (["--url", "here"], 2, "--url: 'here'"),
        (["--url", "http://127.0.0.1:9"], 6, "http://127.0.0.1:9/v1/: "),
        (["--url", "x", "--request-rate", "1", "--concurrency", "2"], 2, "exclude each other"),
        (["--url", "http://x", "--plot", "plot.gif"], 2, "not the name of a .png file"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    done = astrai("bench", "serve", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].startswith("astrai: ")


def test_without_matplotlib_a_plot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInputError, match=r"\[plot\]"):
        check_plot(Path("plot.png"))
