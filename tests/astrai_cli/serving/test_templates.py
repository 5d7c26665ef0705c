from __future__ import annotations

import pytest

from astrai_cli.errors import ArtifactError, InvalidInputError
from astrai_cli.serving import templates
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
