"""Muse Glimmer's framing and its calls, rule by rule."""

from __future__ import annotations

import pytest
from parsing import Answer, receive, tool

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.parsers import End, make_parser
from astrai_cli.serving.tool_schemas import ToolSet

TOOLS = [tool("w", {"p": {"type": "string"}}), tool("a.b")]
NEXT = "<|start|>assistant"
USER, SELF, TOOL = (f" to={name}<|message|>" for name in ("user", "self", "w"))
INVOKE = '<atem:invoke name="w">\n<atem:parameter name="p">x</atem:parameter>\n</atem:invoke>\n'
BLOCK = f"<atem:function_calls>\n{INVOKE}</atem:function_calls>"
CALL = ("w", {"p": "x"})
REAL = f"<|eom|>{NEXT}{TOOL}{BLOCK}<|eot|>"
FAILED = "invalid_tool_output"


def said(content: str = "", reasoning: str | None = None) -> Answer:
    return Answer(reasoning, content, (), "stop")


def called(content: str = "", reasoning: str | None = None, n: int = 1) -> Answer:
    return Answer(reasoning, content, (CALL,) * n, "tool_calls")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hello", said("Hello")),
        ("  Hello ", said("  Hello ")),
        ("<|message|>Hello", said("Hello")),
        (f"{NEXT}{USER}Hello", said("Hello")),
        (f"{USER}\n Hello\n", said("\n Hello\n")),
        (f"{SELF}Why<|eom|>{NEXT}{USER}So<|eot|>", said("So", "Why")),
        (f"{SELF}Why<|eom|> \n{NEXT}{USER}So<|eot|>\n", said("So", "Why")),
        (f"{SELF}Why<|eom|>{USER}So<|eot|>", said("So", "Why")),
        (f"{USER}So<|eom|>{NEXT}<|message|>on", said("So\non")),
        # Several messages to one side are lines of it, but not those of controls alone.
        (f"{SELF}a<|eom|>{NEXT}{SELF}<|patch|><|eom|>{NEXT}{SELF}b", said("", "a\nb")),
        (f"{USER}a<|eom|>{NEXT}{USER}<|eom|>{NEXT}{USER}b", said("a\nb")),
        (f"{SELF}a<|eom|>{NEXT}{USER}b<|eom|>{NEXT}{SELF}c", said("b", "a\nc")),
        # Controls are no reasoning; in what the user sees they are text.
        (f"{SELF}a<|start|>b<|patch|>c<|end_of_text|>d", said("", "abcd")),
        (f"{USER}a<|start|>b<|patch|>c", said("a<|start|>b<|patch|>c")),
    ],
)
def test_framing(text: str, answer: Answer) -> None:
    assert receive([text], TOOLS) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # A header inside a message is text, whatever follows.
        (f"{USER}a {NEXT}{SELF}b", said(f"a {NEXT}{SELF}b")),
        (f"{USER}a {NEXT}{SELF}b{REAL}", called(f"a {NEXT}{SELF}b")),
        (f"{USER}a{SELF}b", said(f"a{SELF}b")),
        # So it is behind text that follows a terminator.
        (f"{SELF}a<|eom|>b{NEXT}{USER}c", said("", "abassistant to=userc")),
        (f"{USER}a<|eom|> b{NEXT}{SELF}c", said(f"a b{NEXT}{SELF}c")),
        (f"{USER}a<|eom|>{' ' * 70}{NEXT}{SELF}c", said(f"a{' ' * 70}{NEXT}{SELF}c")),
        # Only before there is any recipient, a whole header counts wherever it stands.
        (f"Hi {NEXT}{SELF}a<|eom|>{NEXT}{USER}b", said("Hi \nb", "a")),
        ("Hi to=self<|message|>a", said("Hi ", "a")),
        ("photo=self<|message|>a", said("photo=self<|message|>a")),
        ("Mail to=me today", said("Mail to=me today")),
        # What is not complete at the end: controls are dropped, `to=` is text.
        (" to=", said(" to=")),
        (" to=self", said(" to=self")),
        (" to=self<|mess", said()),
        (f"{USER}a <|sta", said("a ")),
        (f"{USER}a <|", said("a ")),
        (f"{USER}a <", said("a <")),
        (f"{SELF}a <|eo", said("", "a ")),
        (f"{USER}a to=", said("a to=")),
        (f"{USER}a<|eom|>{NEXT} to=us", said("a")),
        (f"{USER}a<|eom|><|start|>assis", said("a")),
        (f"{USER}a<|eom|> to=us", said("a to=us")),
        (f"{USER}a<|eom|>\n", said("a")),
        (" ", said(" ")),
        ("", said()),
    ],
)
def test_headers_that_are_none(text: str, answer: Answer) -> None:
    assert receive([text], TOOLS) == answer


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (f"```\n{BLOCK}\n```\nDone", said(f"```\n{BLOCK}\n```\nDone")),
        ("```\ncode\n```", called("```\ncode\n```")),
        ("```\n<|eom|>\n```", called("```\n<|eom|>\n```")),
        (
            "a\n   ~~~ x`y~\n```\n<|eom|>\n ~~~~ \t",
            called("a\n   ~~~ x`y~\n```\n<|eom|>\n ~~~~ \t"),
        ),
        ("````\n```\n<|eot|>\n````\r\nx", called("````\n```\n<|eot|>\n````\r\nx")),
        # No fences: a backtick in the info string, two backticks, code by indentation, mid-line.
        ("```a`b\n", called("```a`b\n")),
        ("``\n", called("``\n")),
        ("    ```\n", called("    ```\n")),
        ("x ```\n", called("x ```\n")),
        # Fences that do not close: too short, of the other kind, indented, with text behind.
        ("````\n```\n", None),
        ("~~~\n```\n", None),
        ("```\n    ```\n", None),
        ("```\n``` x\n", None),
        ("```\nx ```\n", None),
        ("```py", None),
        ("```", None),
    ],
)
def test_fences(body: str, answer: Answer | None) -> None:
    """Followed by a real call, which an open fence turns into text."""
    shown = answer is not None and not answer.calls
    text = USER + body + ("<|eot|>" if shown else REAL)
    unclosed = said(body + REAL.removesuffix("<|eot|>"))
    assert receive([text], TOOLS) == (answer or unclosed)


def test_a_fence_of_thoughts_keeps_headers_too() -> None:
    text = f"{SELF}```\na<|eom|>\n```<|eom|>{NEXT}{USER}b<|eot|>"
    assert receive([text], TOOLS) == said("b", "```\na\n```")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (BLOCK, called()),
        (f"{TOOL}{BLOCK}<|eot|>", called()),
        (f"{TOOL} \n\t{BLOCK}\n\n<|eot|>", called()),
        (" to=w.w<|message|>" + BLOCK.replace('"w"', '"w.w"'), called()),
        (f"{TOOL}{BLOCK}\n{BLOCK}<|eot|>", called(n=2)),
        (f"{USER}Let me see.\n{BLOCK}<|eot|>", called("Let me see.\n")),
        (f"{USER}Let me see.\n   {BLOCK}<|eot|>", called("Let me see.\n   ")),
        (f"{TOOL}{BLOCK} and<|eom|>{NEXT}{USER}more<|eot|>", called(" and\nmore")),
        # No intent: mid-line, quoted, indented as code, in thoughts, without markup.
        (f"{USER}So: {BLOCK}<|eot|>", said(f"So: {BLOCK}")),
        (f"{USER}`{BLOCK}`<|eot|>", said(f"`{BLOCK}`")),
        (f"{USER}a\n    {BLOCK}<|eot|>", said(f"a\n    {BLOCK}")),
        (f"{SELF}a\n{BLOCK}<|eot|>", said("", f"a\n{BLOCK}")),
        (f"{USER}\n{INVOKE}<|eot|>", said(f"\n{INVOKE}")),
        (f"{USER}a\n<atem:fun<|eot|>", said("a\n<atem:fun")),
        (f"{TOOL}{{}}<|eot|>", said("{}")),
    ],
)
def test_intent(text: str, answer: Answer) -> None:
    assert receive([text], TOOLS) == answer


def block(invocations: str) -> str:
    return f"{TOOL}<atem:function_calls>{invocations}</atem:function_calls><|eot|>"


@pytest.mark.parametrize(
    "value",
    [
        "",
        " \n x\n ",
        "<|eot|><|start|>assistant to=user<|message|>",
        "```\n",
        "a</atem:parameter>b",
        "a</atem:parameter>\n</atem:function_calls>",
        "</atem:invoke>",
        "&lt;<![CDATA[",
        '<atem:parameter name="q">',
    ],
)
def test_values_stand_as_they_are(value: str) -> None:
    text = block(INVOKE.replace(">x<", f">{value}<"))
    assert receive([text], TOOLS).calls == (("w", {"p": value}),)


@pytest.mark.parametrize(
    "text",
    [
        block(""),
        block("x" + INVOKE),
        block(INVOKE + "x"),
        block(INVOKE.replace("</atem:invoke>", "")),
        block(INVOKE.replace('<atem:parameter name="p">', "")),
        block(INVOKE.replace("</atem:parameter>", "")),
        block(INVOKE.replace('"w"', '""')),
        block(INVOKE.replace('"w"', '"w" x="1"')),
        block(INVOKE.replace('"w"', '"' + "w" * 2000 + '"')),
        block(INVOKE.replace('"w"', '"other"')),
        block(INVOKE.replace('"w"', '"w.p"')),
        block(INVOKE.replace("w", "a.b")),
        block(INVOKE + INVOKE.replace('"w"', '"other"')),
        f"{TOOL}{INVOKE}<|eot|>",
        f"{TOOL}{BLOCK}</atem:invoke><|eot|>",
        f"{TOOL}{BLOCK[:-1]}<|eot|>",
        f"{TOOL}<atem:function_calls>\n{INVOKE}<|eom|>{NEXT}{USER}x<|eot|>",
    ],
)
def test_malformed_calls_fail(text: str) -> None:
    tools = [TOOLS[0], tool("a.b", additionalProperties=False)]
    assert receive([f"{SELF}why<|eom|>{NEXT}{text}"], tools) == Answer("why", error=FAILED)


@pytest.mark.parametrize("end", ["length", "stop"])
def test_a_call_that_is_cut_off_takes_its_whole_set_along(end: End) -> None:
    whole = f"{TOOL}{BLOCK}<|eom|>{NEXT}{TOOL}{BLOCK}"
    first = len(f"{TOOL}{BLOCK}")
    for cut in range(len(TOOL), len(whole)):
        answer = receive([whole[:cut]], TOOLS, end=end)
        # A call that nothing follows is whole, and so is one before what is no call's beginning.
        if cut == first or whole[first:cut] in {"<|", "<|e", "<|eo", "<|eom", "<|eom|"}:
            assert answer == Answer(calls=(CALL,), finish_reason="tool_calls"), whole[:cut]
        else:
            assert answer == Answer(finish_reason=end), whole[:cut]


def test_a_call_before_the_end_of_the_turn_stands_whatever_cuts_it() -> None:
    answer = receive([f"{TOOL}{BLOCK}<|eot|>"], TOOLS, end="length")
    assert answer == Answer(calls=(CALL,), finish_reason="tool_calls")


def test_a_malformed_call_that_is_complete_fails_even_if_cut_off_later() -> None:
    broken = block("x").removesuffix("<|eot|>")
    assert receive([broken], TOOLS, end="length").error == FAILED
    assert receive([broken[:-1]], TOOLS, end="length") == Answer(finish_reason="length")


def test_a_doomed_answer_says_so() -> None:
    parser = make_parser("atem", ToolSet(TOOLS))
    parser.feed(f"{TOOL}<atem:function_calls>x")
    assert not parser.failed
    parser.feed("</atem:function_calls>")
    assert parser.failed
    assert parser.feed("more text") == []


@pytest.mark.parametrize(("parser", "tools"), [("none", TOOLS), ("atem", [])])
def test_calls_of_disabled_tools_are_text(parser: str, tools: list[dict[str, object]]) -> None:
    value = INVOKE.replace(">x<", ">x<|eot|><|start|>assistant to=self<|message|>y<")
    markup = f"<atem:function_calls>\n{value}</atem:function_calls>"
    text = f"{TOOL}{markup}<|eom|>{NEXT}{USER}so<|eot|>"
    assert receive([text], tools, parser=parser) == said(f"{markup}\nso")
    assert receive([text[:90]], tools, parser=parser).content == text[len(TOOL) : 90]


def test_text_is_released_as_soon_as_it_is_certain() -> None:
    parser = make_parser("atem", ToolSet(TOOLS))

    def fed(piece: str) -> str:
        return "".join(delta.text for delta in parser.feed(piece))

    assert fed(USER) == ""
    assert fed("a\n") == "a"
    assert fed("<at") == ""
    assert fed("om") == "\n<atom"
    assert fed(" <|e") == " "
    assert fed("x") == "<|ex"
    assert fed("\n``") == ""
    assert fed("`") == "\n```"
    assert fed("info") == "info"


def test_unknown_parsers() -> None:
    with pytest.raises(InvalidInputError, match="no parser 'xml'"):
        make_parser("xml", ToolSet())
