import threading

import pytest

from astrai_cli.engine.request import Event, Finish, Piece, Usage
from astrai_cli.engine.result import Completion, GenerateResult
from astrai_cli.errors import EngineUnavailableError, ExecutionError

PIECES = [Piece("He", (1,)), Piece("", (2,)), Piece("llo", (3, 4))]
FINISH = Finish("stop", Usage(5, 4), matched_stop="!")
COMPLETION = Completion("Hello", (1, 2, 3, 4), "stop", Usage(5, 4), "!")


def fill(result: GenerateResult, *events: Event) -> threading.Thread:
    thread = threading.Thread(target=lambda: [result.put(event) for event in events])
    thread.start()
    return thread


def test_a_whole_answer_is_waited_for() -> None:
    result = GenerateResult()
    assert not result.wait(0.0)
    thread = fill(result, *PIECES, FINISH)
    assert result.wait_completion(30) == COMPLETION
    assert str(result.wait_completion()) == "Hello"
    thread.join()


def test_a_stream_gives_the_pieces_and_returns_the_answer() -> None:
    result = GenerateResult()
    thread = fill(result, *PIECES, FINISH)
    for _ in range(2):
        stream = result.stream()
        assert [next(stream) for _ in PIECES] == PIECES
        with pytest.raises(StopIteration) as stop:
            next(stream)
        assert stop.value.value == COMPLETION
    thread.join()


def test_a_callback_gets_every_event() -> None:
    events: list[Event] = []
    fill(GenerateResult(events.append), *PIECES, FINISH).join()
    assert events == [*PIECES, FINISH]


def test_waiting_is_bounded() -> None:
    with pytest.raises(TimeoutError):
        GenerateResult().wait_completion(0.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("execution_error", ExecutionError), ("engine_unavailable", EngineUnavailableError)],
)
def test_a_failed_answer_raises_its_error(code: str, kind: type[Exception]) -> None:
    result = GenerateResult()
    result.put(PIECES[0])
    result.put(Finish("error", Usage(5, 1), error="it broke", error_code=code))
    with pytest.raises(kind, match="it broke"):
        result.wait_completion()
    stream = result.stream()
    assert next(stream) == PIECES[0]
    with pytest.raises(kind, match="it broke"):
        next(stream)
