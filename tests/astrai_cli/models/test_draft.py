"""The block draft's numbers are those of another implementation, and foreign ones are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from muse_fixtures import CHAT_MODEL, DRAFT, MMPROJ, Q4_K_M, TINY, distance, optional_model
from tiny_models import tiny_gguf
from torch import Tensor, nn

from astrai_cli.errors import ModelFileError
from astrai_cli.models.draft import BlockDraft, load_draft
from astrai_cli.models.draft_spec import DraftFile, open_draft
from astrai_cli.models.source import open_source

CONTEXT = 40


@pytest.fixture(scope="module")
def draft() -> BlockDraft:
    with open_source(Q4_K_M) as target, open_draft(target, DRAFT) as file:
        assert file is not None
        return load_draft(file)


@torch.inference_mode()
def hidden(draft: BlockDraft) -> Tensor:
    """What the draft gives for the reference's context and block: [block, width]."""
    with np.load(TINY / "draft.npz") as arrays:
        taps, embeddings = (torch.from_numpy(arrays[name]) for name in ("taps", "embeddings"))
    context = list(draft.context(taps, torch.arange(CONTEXT)))

    def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
        keys, values = (
            torch.cat([kept, own.squeeze(2)]).transpose(0, 1)[None]
            for kept, own in zip(context[layer], (k, v), strict=True)
        )
        queries = q.squeeze(2).transpose(0, 1)[None]
        output = nn.functional.scaled_dot_product_attention(
            queries, keys, values, scale=draft.spec.layers.attention_scale, enable_gqa=True
        )
        return output[0].transpose(0, 1).unsqueeze(2)

    block = draft.spec.max_block
    output: Tensor = draft(embeddings, torch.arange(CONTEXT, CONTEXT + block), attend)
    return output


def test_the_spec_is_the_file_s(draft: BlockDraft) -> None:
    assert draft.spec.taps == (0, 2, 4)
    assert (draft.spec.max_block, draft.spec.max_tokens, draft.spec.mask_id) == (8, 7, 1022)


def test_hidden_rows_are_the_reference_s(draft: BlockDraft) -> None:
    with np.load(TINY / "draft.npz") as arrays:
        assert distance(hidden(draft).numpy(), arrays["hidden"]) < 1e-5


def test_the_target_s_head_makes_the_reference_s_logits_of_them(draft: BlockDraft) -> None:
    reference = np.load(optional_model("tiny-muse/reference.npz"))["draft_lm_head"]
    with open_source(optional_model("tiny-muse/tiny-muse-bf16.gguf")) as target:
        head = torch.from_numpy(target.weights.get("output.weight"))
    assert distance((hidden(draft) @ head.T).numpy(), reference) < 1e-5


def test_a_file_that_is_no_draft_is_refused() -> None:
    for path in (Q4_K_M, MMPROJ):
        with pytest.raises(ModelFileError, match=r"general\.architecture.*'dflash'"):
            DraftFile.open(path)


def test_a_draft_of_another_model_is_refused(tmp_path: Path) -> None:
    with (
        open_source(tiny_gguf(tmp_path)) as target,
        pytest.raises(ModelFileError, match="the draft is 256 wide, and the target is 64 wide"),
        open_draft(target, DRAFT),
    ):
        pass


def test_a_draft_of_the_same_shapes_is_taken() -> None:
    with open_source(CHAT_MODEL) as target, open_draft(target, DRAFT) as file:
        assert file is not None


def test_no_file_is_no_draft() -> None:
    with open_source(CHAT_MODEL) as target, open_draft(target, None) as file:
        assert file is None
