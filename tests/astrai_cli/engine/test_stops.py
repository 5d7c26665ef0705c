import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from astrai_cli.engine.stops import (
    MAX_HEADER_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MessageHeaders,
    StopMatcher,
)
from astrai_cli.errors import InvalidInputError

SHORT = st.text("ab", min_size=1, max_size=5)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            longest = max(endings, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(SHORT, max_size=5), st.lists(st.text("ab", max_size=6), max_size=8))
@example(["abab", "ba"], ["ab", "aba"])
@example(["a", "ba", "bba"], ["bb", "a"])
def test_any_split_gives_the_answer_for_the_whole_text(stops: list[str], cuts: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = "".join(matcher.feed(cut) for cut in cuts) + matcher.flush()
    assert (released, matcher.matched) == first_stop("".join(cuts), stops)


@given(st.lists(SHORT, min_size=1, max_size=4), st.text("abc", max_size=20))
def test_only_what_can_become_a_stop_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    released = ""
    for end, char in enumerate(text, 1):
        released += matcher.feed(char)
        if matcher.matched is not None:
            break
        held = text[len(released) : end]
        starts = {stop[:n] for stop in stops for n in range(len(stop))}
        assert held == max((tail for tail in starts if text[:end].endswith(tail)), key=len)


def test_without_stops_text_passes_unchanged() -> None:
    matcher = StopMatcher(())
    assert matcher.feed("anything") + matcher.flush() == "anything"


def test_text_after_a_stop_is_dropped() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("one END two") == "one "
    assert matcher.feed("three") + matcher.flush() == ""
    assert matcher.matched == "END"


def test_many_long_stops_are_taken_in_linear_time() -> None:
    stops = ["a" * (MAX_STOP_CHARS - n - 1) + chr(0x100 + n) for n in range(MAX_STOPS)]
    matcher = StopMatcher(stops)
    text = "a" * 100_000
    assert matcher.feed(text) + matcher.flush() == text


@pytest.mark.parametrize(
    ("stops", "names"),
    [
        (["x"] * (MAX_STOPS + 1), f"{MAX_STOPS + 1} stop strings; at most {MAX_STOPS}"),
        ([""], "0 characters"),
        (["x" * (MAX_STOP_CHARS + 1)], f"{MAX_STOP_CHARS + 1} characters"),
    ],
)
def test_stops_out_of_bounds_are_refused(stops: list[str], names: str) -> None:
    with pytest.raises(InvalidInputError, match=names) as caught:
        StopMatcher(stops)
    assert caught.value.param == "stop"


@given(st.lists(SHORT, max_size=5), st.text("ab", max_size=8), st.text("ab", max_size=4))
def test_a_hidden_end_completes_stops_and_is_never_shown(
    stops: list[str], text: str, hidden: str
) -> None:
    matcher = StopMatcher(stops)
    released = matcher.feed(text) + matcher.flush(hidden)
    shown, matched = first_stop(text + hidden, stops)
    assert (released, matcher.matched) == (shown[: len(text)], matched)


BEGIN, END = 1, 2


@pytest.mark.parametrize(
    ("prompt", "answer", "inside"),
    [
        ([BEGIN, 5], [6, END, 7, 7], "yyn n"),
        ([BEGIN, 5, END], [6, BEGIN, 7, END, 8], "nyyyn"),
        ([5], [6, END, 7], "nnn"),
        ([], [BEGIN, BEGIN, 7, END, 7], "yyyyn"),
    ],
)
def test_headers_go_from_their_beginning_to_their_end(
    prompt: list[int], answer: list[int], inside: str
) -> None:
    headers = MessageHeaders((BEGIN, END), prompt)
    told = "".join("y" if headers.take(token_id) else "n" for token_id in answer)
    assert told == inside.replace(" ", "")


def test_a_header_that_does_not_end_is_none() -> None:
    headers = MessageHeaders((BEGIN, END), [BEGIN])
    assert [headers.take(5) for _ in range(MAX_HEADER_TOKENS + 1)][-2:] == [True, False]
    assert not any(MessageHeaders(None, [BEGIN]).take(token_id) for token_id in (BEGIN, 5))
