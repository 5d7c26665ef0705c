"""What a request may tell a template of reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from astrai_cli.serving.chat_format import ChatFormat
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.templates import ChatTemplate

SWITCH = "{% if enable_thinking is false %}<think></think>{% endif %}"
STRENGTH = "{{ reasoning_strength }}"


def variables(template: str, thinks: bool | None) -> dict[str, Any]:
    return ChatFormat(ChatTemplate(template), "hermes", False).variables((), None, thinks)


@pytest.mark.parametrize("thinks", [True, False])
def test_a_switch_is_turned(thinks: bool) -> None:
    assert variables(SWITCH, thinks) == {"enable_thinking": thinks}


@pytest.mark.parametrize("template", [SWITCH, STRENGTH, "<think>", "no thoughts"])
def test_the_template_decides_where_nothing_is_asked(template: str) -> None:
    assert variables(template, None) == {}


@pytest.mark.parametrize("template", [STRENGTH, "<think>"])
def test_a_model_that_always_reasons_says_so(template: str) -> None:
    assert variables(template, True) == {}
    with pytest.raises(RequestError, match="always reasons"):
        variables(template, False)


def test_a_model_without_thoughts_has_none() -> None:
    assert variables("no thoughts", False) == {}
