"""Describes a model file or an artifact: shapes, sizes, memory, tokenizer, digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel
from tokenizers import Tokenizer

from astrai_cli.artifact import TEMPLATE_NAME, TOKENIZER_NAME, Artifact
from astrai_cli.files import sha256_of
from astrai_cli.manifest import ArtifactDraft, ArtifactLimits, ArtifactVision, Source
from astrai_cli.models.architectures import expected_tensors
from astrai_cli.models.resolve import is_model_folder
from astrai_cli.models.source import open_source
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens

CACHE_TOKENS = 1000


class TensorGroup(BaseModel):
    """All tensors of one type, as the file calls it."""

    type: str
    count: int
    values: int
    bytes: int


class Memory(BaseModel):
    """Bytes needed to run; the cache for 1,000 tokens of one sequence."""

    weights: int
    cache_float16_per_1000_tokens: int
    cache_float32_per_1000_tokens: int


class TokenizerSummary(BaseModel):
    """bos, eos: token texts by id. pre: the file's name for its pre-tokenizer."""

    vocab_size: int
    pre: str | None
    bos: dict[int, str]
    eos: dict[int, str]
    add_bos: bool


class ArtifactSummary(BaseModel):
    """What only an artifact has; see Manifest."""

    backend: str
    format_version: int
    limits: ArtifactLimits
    source: Source
    vision: ArtifactVision | None
    draft: ArtifactDraft | None
    export_options: dict[str, Any]
    details: dict[str, Any]
    versions: dict[str, str]


class FileSummary(BaseModel):
    """A file's size in bytes and its digest."""

    name: str
    size: int
    sha256: str


class Description(BaseModel):
    """A model or an artifact. tensors: by type, largest first; empty for an artifact."""

    kind: Literal["gguf", "hf", "artifact"]
    path: Path
    spec: ModelSpec
    parameters: int
    tensors: list[TensorGroup]
    memory: Memory
    tokenizer: TokenizerSummary
    chat_template: str | None
    files: list[FileSummary]
    artifact: ArtifactSummary | None


def describe(path: Path) -> Description:
    """Describe a GGUF file, a Hugging Face folder or an artifact; reads every file, for its digest.

    Raises ModelFileError, or ArtifactError for another folder.
    """
    if path.is_dir() and not is_model_folder(path):
        return _describe_artifact(path)
    with open_source(path) as model:
        tokenizer = model.tokenizer()
        special = model.special_tokens()
        tensors = _tensor_groups(model.stored_tensors())
        return Description(
            kind=model.kind,
            path=path,
            spec=model.spec,
            parameters=_parameters(model.spec),
            tensors=tensors,
            memory=_memory(model.spec, sum(group.bytes for group in tensors)),
            tokenizer=_tokenizer_summary(tokenizer, special, model.pre_tokenizer),
            chat_template=model.chat_template(),
            files=[
                FileSummary(name=file.name, size=file.stat().st_size, sha256=sha256_of(file))
                for file in model.files
            ],
            artifact=None,
        )


def _describe_artifact(path: Path) -> Description:
    artifact = Artifact.open(path, verify=True)
    manifest = artifact.manifest
    weights = sum(
        entry.size
        for name, entry in manifest.files.items()
        if name not in (TOKENIZER_NAME, TEMPLATE_NAME)
    )
    return Description(
        kind="artifact",
        path=path,
        spec=artifact.spec,
        parameters=_parameters(artifact.spec),
        tensors=[],
        memory=_memory(artifact.spec, weights),
        tokenizer=_tokenizer_summary(artifact.tokenizer(), artifact.special_tokens, None),
        chat_template=artifact.chat_template,
        files=[
            FileSummary(name=name, size=entry.size, sha256=entry.sha256)
            for name, entry in manifest.files.items()
        ],
        artifact=ArtifactSummary(
            backend=manifest.backend,
            format_version=manifest.format_version,
            limits=manifest.limits,
            source=manifest.source,
            vision=manifest.vision,
            draft=manifest.draft,
            export_options=manifest.export_options,
            details=manifest.details,
            versions=manifest.versions,
        ),
    )


def _parameters(spec: ModelSpec) -> int:
    return sum(int(np.prod(shape)) for shape in expected_tensors(spec).values())


def _tensor_groups(tensors: Iterable[tuple[str, int, int]]) -> list[TensorGroup]:
    """From the type, the values and the bytes of each tensor."""
    counts: Counter[str] = Counter()
    values: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, n_values, n_bytes in tensors:
        counts[kind] += 1
        values[kind] += n_values
        sizes[kind] += n_bytes
    return [
        TensorGroup(type=name, count=counts[name], values=values[name], bytes=size)
        for name, size in sizes.most_common()
    ]


def _memory(spec: ModelSpec, weights: int) -> Memory:
    cached_values = spec.kv_values_per_token * CACHE_TOKENS
    return Memory(
        weights=weights,
        cache_float16_per_1000_tokens=2 * cached_values,
        cache_float32_per_1000_tokens=4 * cached_values,
    )


def _tokenizer_summary(
    tokenizer: Tokenizer, special: SpecialTokens, pre: str | None
) -> TokenizerSummary:
    def texts(ids: tuple[int, ...]) -> dict[int, str]:
        return {index: tokenizer.id_to_token(index) or "" for index in ids}

    return TokenizerSummary(
        vocab_size=tokenizer.get_vocab_size(),
        pre=pre,
        bos=texts(() if special.bos is None else (special.bos,)),
        eos=texts(special.eos),
        add_bos=special.add_bos,
    )
