"""Failures inside the shared suite explain themselves like those of test modules."""

import pytest

pytest.register_assert_rewrite("conformance", "step_texts")
