"""The official test suite's required tests: the same verdict, or the schema is refused up front."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from astrai_cli.serving.tool_schemas.budget import Budget
from astrai_cli.serving.tool_schemas.dialects import (
    DRAFT_7,
    DRAFT_2019_09,
    DRAFT_2020_12,
    Dialect,
    SchemaRefusedError,
)
from astrai_cli.serving.tool_schemas.evaluation import Node
from astrai_cli.serving.tool_schemas.tools import compile_schema

DATA = Path(__file__).parents[3] / "data" / "json-schema-test-suite.json.xz"
# What the suite's schemas may be refused for, each a part of the message.
REFUSED = (
    "leads outside the schema",
    "$id is supported at the root",
    "$dynamicAnchor is not supported",
    "$dynamicRef is not supported",
    "$recursiveAnchor is not supported",
    "$recursiveRef is not supported",
    "$schema is",
)


@pytest.fixture(scope="module")
def suite() -> dict[str, Any]:
    drafts: dict[str, Any] = json.loads(lzma.decompress(DATA.read_bytes()))["drafts"]
    return drafts


def compiled(schema: Any, dialect: Dialect) -> Node | None:
    """The schema's node, or None where it is refused for one of the known reasons."""
    try:
        return compile_schema(schema, Budget(), dialect)[1]
    except SchemaRefusedError as error:
        if any(reason in str(error) for reason in REFUSED):
            return None
        raise


@pytest.mark.parametrize(
    ("draft", "dialect", "n_judged", "n_refused"),
    [
        ("draft7", DRAFT_7, 858, 55),
        ("draft2019-09", DRAFT_2019_09, 1117, 110),
        ("draft2020-12", DRAFT_2020_12, 1141, 116),
    ],
)
def test_verdicts(
    suite: dict[str, Any], draft: str, dialect: Dialect, n_judged: int, n_refused: int
) -> None:
    counts: Counter[str] = Counter()
    for file, groups in suite[draft].items():
        for group in groups:
            node = compiled(group["schema"], dialect)
            if node is None:
                counts["refused"] += len(group["tests"])
                continue
            for test in group["tests"]:
                verdict = node.accepts(test["data"], Budget())
                assert verdict is test["valid"], (file, group["description"], test)
                counts["judged"] += 1
    assert counts == {"judged": n_judged, "refused": n_refused}
