"""Packing; what it refuses is in the conformance suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_gguf

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.gguf import ModelFile
from backends.base import ExecutorInfo, SequenceStep, Step
from backends.packing import pack


@pytest.fixture
def info(tmp_path: Path) -> ExecutorInfo:
    with ModelFile.open(tiny_gguf(tmp_path)) as model_file:
        return ExecutorInfo(model_file.spec, "none", 64, 64, 1)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_lays_sequences_in_one_row(info: ExecutorInfo) -> None:
    step = Step(
        [
            SequenceStep(ids(5, 6, 7), 3, ids(9, 2), logit_rows=2),
            SequenceStep(ids(8), 0, ids(4), logit_rows=0),
            SequenceStep(ids(1), 8, ids(0, 1, 3, 99), logit_rows=1),
        ],
        page_size=4,
    )
    packed = pack(step, info, cells=40)
    assert packed.tokens.tolist() == [5, 6, 7, 8, 1]
    assert packed.positions.tolist() == [3, 4, 5, 0, 8]
    assert packed.cells.tolist() == [39, 8, 9, 16, 12]
    assert packed.rows.tolist() == [1, 2, 4]
    assert packed.tokens.dtype == np.int32
    assert {packed.positions.dtype, packed.cells.dtype, packed.rows.dtype} == {np.dtype(np.int64)}


def test_no_rows(info: ExecutorInfo) -> None:
    packed = pack(Step([SequenceStep(ids(5), 0, ids(0), logit_rows=0)], 4), info, cells=4)
    assert packed.rows.shape == (0,)
    assert packed.rows.dtype == np.int64


def test_a_page_may_be_read_by_many(info: ExecutorInfo) -> None:
    shared = [SequenceStep(ids(1), 4, ids(0, page)) for page in (1, 2, 3)]
    assert pack(Step(shared, 4), info, cells=16).cells.tolist() == [4, 8, 12]


def test_cells_that_fill_no_page_are_out_of_reach(info: ExecutorInfo) -> None:
    with pytest.raises(InvalidInputError, match="page 1 "):
        pack(Step([SequenceStep(ids(1), 4, ids(0, 1))], 4), info, cells=7)
