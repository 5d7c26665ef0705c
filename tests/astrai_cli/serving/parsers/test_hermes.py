"""Answers of Qwen-like models: thoughts, text, and calls as JSON."""

from __future__ import annotations

import json

import pytest
from parsing import Answer, receive, tool

from astrai_cli.serving.parsers.hermes import HermesParser
from astrai_cli.serving.tool_schemas import ToolSet

TOOLS = [tool("w", {"p": {"type": "string"}}, required=["p"])]


def call(arguments: object = None, name: str = "w") -> str:
    body = {"name": name, "arguments": {"p": "x"} if arguments is None else arguments}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hello", Answer(None, "Hello", (), "stop")),
        ("Hello<|im_end|>", Answer(None, "Hello", (), "stop")),
        (" <thinker>", Answer(None, " <thinker>", (), "stop")),
        ("<think>\nwhy\n</think>\n\nso", Answer("why", "so", (), "stop")),
        ("<think>\n\n</think>\n\nso", Answer(None, "so", (), "stop")),
        ("<think>why\n```\n</think>so", Answer("why\n```", "so", (), "stop")),
        ("<think>why", Answer("why", "", (), "stop")),
        ("<think>why </thi", Answer("why", "", (), "stop")),
        (call(), Answer(None, "", (("w", {"p": "x"}),), "tool_calls")),
        (
            f"See:\n{call()}\n{call()}",
            Answer(None, "See:\n", (("w", {"p": "x"}),) * 2, "tool_calls"),
        ),
        (f"<think>a</think>\n{call()}", Answer("a", "", (("w", {"p": "x"}),), "tool_calls")),
        (
            call({"p": 'a"</tool_call>\\'}),
            Answer(None, "", (("w", {"p": 'a"</tool_call>\\'}),), "tool_calls"),
        ),
        (f"So {call()}", Answer(None, f"So {call()}", (), "stop")),
        (f"```\n{call()}\n```", Answer(None, f"```\n{call()}\n```", (), "stop")),
    ],
)
def test_answers(text: str, answer: Answer) -> None:
    assert receive([text], TOOLS, parser="hermes") == answer


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>x</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "w"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "w", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "w", "arguments": {"p": "x", "p": "y"}}</tool_call>',
        call({}),
        call({"p": 1}),
        call(name="other"),
        call()[:-1],
        call() + call({}),
    ],
)
def test_calls_that_fail(text: str) -> None:
    assert receive([text], TOOLS, parser="hermes") == Answer(error="invalid_tool_output")


def test_a_call_that_is_cut_off() -> None:
    for cut in range(len("<tool_"), len(call())):
        answer = receive([call()[:cut]], TOOLS, parser="hermes", end="length")
        assert answer == Answer(finish_reason="length")


def test_calls_of_disabled_tools_are_text() -> None:
    assert receive([call()], [], parser="hermes").content == call()


def test_prompts_that_end_inside_the_thoughts() -> None:
    parser = HermesParser(ToolSet(), thinking=True)
    deltas = parser.feed("\nwhy</think>so") + parser.finish("eos").deltas
    assert [(delta.channel, delta.text) for delta in deltas] == [
        ("reasoning", "why"),
        ("content", "so"),
    ]
