"""However a text is cut into pieces, the answer is the same, and nothing but the one error."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from parsing import receive, tool

TOOLS = [
    tool("write", {"path": {"type": "string"}, "n": {"type": ["integer", "null"]}}),
    tool("get.time", additionalProperties=False),
]
FRAGMENTS = [
    *("<|start|>assistant", "<|start|>", " to=self", " to=user", " to=write", "to=", "<|message|>"),
    *("<|eom|>", "<|eot|>", "<|end_of_text|>", "<|patch|>", "<|eo", "<|", "<", "|>"),
    *("\n", "\n", " ", "    ", "\t", "\r\n", "a", "text ", "é", "to", "t", "assistant"),
    *("```", "````", "`", "~~~", "~", "```py", "```\n", "\n```\n"),
    *("<atem:function_calls>", "</atem:function_calls>", '<atem:invoke name="', "</atem:invoke>"),
    *('write">', 'write.write">', 'get.time">', '<atem:parameter name="path">', '"', ">", "5"),
    *('<atem:parameter name="n">', "</atem:parameter>", "<atem:", "</atem:", "null"),
    '<atem:function_calls>\n<atem:invoke name="get.time">\n</atem:invoke>\n</atem:function_calls>',
    '<atem:invoke name="write"><atem:parameter name="n">7</atem:parameter></atem:invoke>',
    " to=user<|message|>",
    "<|eom|><|start|>assistant to=self<|message|>",
    "<|eom|><|start|>assistant to=write<|message|>",
]
HERMES = [
    *("<think>", "</think>", "<think", "</thi", "<tool_call>", "</tool_call>", "</tool", "\\"),
    *('{"name": "write", "arguments": {"n": 1}}', '{"name": "', '"', '": {', "}", "<tool_"),
    *("\n", "\n", " ", "a", "text", "```", "```\n", "~~~", "<|im_end|>", "<|endoftext|>", "<|im"),
    '<tool_call>\n{"name": "write", "arguments": {"path": "</tool_call>"}}\n</tool_call>',
]
CUTS = st.lists(st.integers(0, 400), max_size=12)
ENDS = st.sampled_from(["eos", "length", "stop"])


def texts(fragments: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(fragments), max_size=24).map("".join)


def check(text: str, cuts: list[int], **options: Any) -> None:
    whole = receive([text], **options)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert receive(pieces, **options) == whole
    assert receive(text, **options) == whole


@settings(max_examples=200, deadline=None)
@given(texts(FRAGMENTS), CUTS, ENDS, st.sampled_from(["atem", "none"]), st.booleans())
def test_muse_answers(text: str, cuts: list[int], end: Any, parser: str, enabled: bool) -> None:
    check(text, cuts, tools=TOOLS if enabled else [], parser=parser, end=end)


@settings(max_examples=100, deadline=None)
@given(texts(FRAGMENTS), CUTS, ENDS)
def test_muse_answers_that_begin_well(text: str, cuts: list[int], end: Any) -> None:
    check(" to=write<|message|><atem:function_calls>" + text, cuts, tools=TOOLS, end=end)


@settings(max_examples=150, deadline=None)
@given(texts(HERMES), CUTS, ENDS, st.booleans())
def test_hermes_answers(text: str, cuts: list[int], end: Any, enabled: bool) -> None:
    check(text, cuts, tools=TOOLS if enabled else [], parser="hermes", end=end)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), CUTS, st.sampled_from(["atem", "none", "hermes", "plain"]))
def test_any_text(text: str, cuts: list[int], parser: str) -> None:
    check(text, cuts, tools=TOOLS, parser=parser)
