"""Cases from public bug reports, in every split into two and in random splits into many."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from parsing import Answer, receive

from astrai_cli.serving.parsers import InvalidToolOutputError, parse_output

CASES = Path(__file__).parents[3] / "data" / "atem-cases.jsonl"


@pytest.mark.parametrize(
    "case",
    [json.loads(line) for line in CASES.read_text("utf-8").splitlines()],
    ids=lambda case: case["id"],
)
def test_case(case: dict[str, Any]) -> None:
    text, tools, end, expected = (case[key] for key in ("text", "tools", "end", "expect"))
    answer = Answer(
        expected["reasoning"],
        expected["content"],
        tuple((call["name"], call["arguments"]) for call in expected.get("tool_calls", [])),
        expected.get("finish_reason"),
        expected.get("error"),
    )
    rng = random.Random(0)
    splits = [[text[:cut], text[cut:]] for cut in range(len(text) + 1)]
    for n_cuts in (3, 10, 30, 100):
        bounds = sorted(rng.choices(range(len(text)), k=n_cuts))
        splits.append([text[a:b] for a, b in zip([0, *bounds], [*bounds, len(text)], strict=True)])
    for pieces in [*splits, list(text)]:
        assert receive(pieces, tools, end=end) == answer
    check_whole(case, answer)


def check_whole(case: dict[str, Any], answer: Answer) -> None:
    """`parse_output` says the same, and its arguments are of the same types."""
    arguments = (case["text"], case["tools"], case["end"])
    if answer.error is not None:
        with pytest.raises(InvalidToolOutputError):
            parse_output("atem", *arguments)
        return
    output = parse_output("atem", *arguments)
    assert (output.reasoning, output.content) == (answer.reasoning, answer.content)
    assert output.finish_reason == answer.finish_reason
    calls = [{"name": call.name, "arguments": call.arguments} for call in output.tool_calls]
    assert json.dumps(calls) == json.dumps(case["expect"]["tool_calls"])
