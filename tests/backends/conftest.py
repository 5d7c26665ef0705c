"""Failures inside the shared suite explain themselves like those of test modules."""

import pytest

pytest.register_assert_rewrite(
    "conformance", "draft_answers", "draft_suite", "engine_suite", "server_suite", "step_texts"
)
