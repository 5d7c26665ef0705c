from __future__ import annotations

from pathlib import Path

import pytest
from byte_tokenizer import byte_text

from astrai_cli.errors import ArtifactError, InvalidInputError
from astrai_cli.serving import templates
from astrai_cli.serving.parsers import ToolCall, parse_output
from astrai_cli.serving.templates import ChatTemplate

CONVERSATION = [
    {"role": "developer", "content": "Be brief.\n"},
    {"role": "user", "content": "<Grüße> & 'so'"},
]


def render(source: str, **tokens: str) -> str:
    return ChatTemplate(source, **tokens).render(CONVERSATION)


def test_the_bundled_template_is_chatml() -> None:
    assert ChatTemplate.bundled().render(CONVERSATION) == (
        "<|im_start|>system\nBe brief.\n<|im_end|>\n"
        "<|im_start|>user\n<Grüße> & 'so'<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    without = ChatTemplate.bundled().render(CONVERSATION, add_generation_prompt=False)
    assert without.endswith("<|im_end|>\n")


def test_developers_are_kept_where_the_template_knows_them() -> None:
    assert render("{{ messages[0].role }}") == "system"
    assert render("{{ messages[0].role }}{# developer #}") == "developer"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "<Grüße> & \'so\'"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "system"),
        ("{% generation %}{{ 1 + 1 }}{% endgeneration %}", "2"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{% if tools %}tools{% endif %}{% if documents %}documents{% endif %}.", "."),
        ("{{ '=' * 3 }}{{ 2 ** 10 }}{{ 3 * 4 }}", "===102412"),
    ],
)
def test_helpers_are_those_that_models_are_published_with(source: str, text: str) -> None:
    assert render(source, bos_token="<s>", eos_token="</s>") == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].absent.deeper }}", "absent"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
        ("{{ 'x' * 1000000000 }}", "repetition is too long"),
        ("{{ 1000000000 * [1] }}", "repetition is too long"),
        ("{{ 10 ** 1000000000 }}", "power is too large"),
    ],
)
def test_what_a_template_may_not_do_is_one_line_about_the_messages(
    source: str, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        render(source)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


def test_the_prompt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_PROMPT_CHARS", 1000)
    loop = "{% for i in range(N) %}{{ i % 10 }}{% endfor %}"
    assert len(render(loop.replace("N", "1000"))) == 1000
    with pytest.raises(InvalidInputError, match="longer than 1000"):
        render(loop.replace("N", "1001"))


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'open", "{% endfor %}", "{{ (" + "(" * 5000])
def test_what_is_no_template_is_an_error_of_the_artifact(source: str) -> None:
    with pytest.raises(ArtifactError, match="chat template"):
        ChatTemplate(source)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def muse(messages: list[dict[str, object]], **variables: object) -> str:
    return ChatTemplate.bundled("muse").render(messages, variables=variables)


def test_muse_frames_every_role_and_every_part_of_an_answer() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}]},
        {
            "role": "assistant",
            "reasoning_content": "I need two things.",
            "content": "Let me see.",
            "tool_calls": [
                call("files.read", path=" a b ", lines=[1, {"n": 2}], whole=True),
                call("get_time.get_time"),
            ],
        },
        {"role": "tool", "name": "files.read", "content": "<b>"},
        {"role": "assistant", "content": "Done."},
    ]
    tools = [
        {"type": "function", "function": {"name": "files.read"}},
        {"type": "function", "function": {"name": "files.write"}},
        {"type": "function", "function": {"name": "get_time.get_time"}},
    ]
    assert muse(messages, tools=tools, reasoning_strength="high") == (
        "<|start|>system<|message|>Be kind.\n\nReasoning strength: high.\n\n"
        "Here are the functions available in JSONSchema format:\n"
        '{"name": "files.read"}\n{"name": "files.write"}\n{"name": "get_time.get_time"}\n\n'
        'Valid recipients: "self", "files.*", "get_time.*", "user".<|eot|>'
        "<|start|>developer<|message|>Be brief.<|eot|>"
        "<|start|>user<|message|>Look: <|image_start|><|patch|><|image_end|><|eot|>"
        "<|start|>assistant to=self<|message|>I need two things.<|eom|>"
        "<|start|>assistant to=user<|message|>Let me see.<|eom|>"
        "<|start|>assistant to=files.read<|message|><atem:function_calls>\n"
        '<atem:invoke name="files.read">\n'
        '<atem:parameter name="path"> a b </atem:parameter>\n'
        '<atem:parameter name="lines">[1, {"n": 2}]</atem:parameter>\n'
        '<atem:parameter name="whole">true</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eom|>"
        "<|start|>assistant to=get_time.get_time<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_time.get_time">\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>"
        '<|start|>tool files.read<|message|><tool_output name="files.read">\n<b>\n'
        "</tool_output><|eot|>"
        "<|start|>assistant to=user<|message|>Done.<|eot|>"
        "<|start|>assistant"
    )


def test_muse_has_a_system_message_where_the_conversation_has_none() -> None:
    assert muse([{"role": "user", "content": "hi"}]) == (
        "<|start|>system<|message|>Reasoning strength: medium.\n\n"
        'Valid recipients: "self", "user".<|eot|>'
        "<|start|>user<|message|>hi<|eot|><|start|>assistant"
    )


def test_what_the_muse_template_writes_its_parser_reads() -> None:
    answer = {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "Let me see.",
        "tool_calls": [call("f.f", text="a\n</b>", n=3)],
    }
    before = muse([{"role": "user", "content": "hi"}])
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}, answer]
    whole = ChatTemplate.bundled("muse").render(messages, add_generation_prompt=False)
    properties = {"text": {"type": "string"}, "n": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    parsed = parse_output("atem", whole.removeprefix(before), [tool])
    assert (parsed.reasoning, parsed.content) == ("Hm.", "Let me see.")
    assert parsed.tool_calls == (ToolCall("f", {"text": "a\n</b>", "n": 3}),)


def test_a_template_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages | length }}{{ eos_token }}")
    template = ChatTemplate.of(byte_text(256), str(path))
    assert template.render(CONVERSATION) == "2<end>"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        ChatTemplate.of(byte_text(256), str(path))
    path.write_bytes(b"x" * (templates.MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(InvalidInputError, match=f"at most {templates.MAX_TEMPLATE_BYTES}"):
        ChatTemplate.of(byte_text(256), str(path))
