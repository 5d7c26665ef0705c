"""Describes a model file or an artifact: shapes, sizes, memory, tokenizer, digests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel
from tokenizers import Tokenizer

from astrai_cli.artifact import TEMPLATE_NAME, TOKENIZER_NAME, Artifact, ArtifactLimits, Source
from astrai_cli.models.architectures import expected_tensors
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import (
    PRE_KEY,
    SpecialTokens,
    build_tokenizer,
    read_chat_template,
    read_special_tokens,
)

CACHE_TOKENS = 1000


class TensorGroup(BaseModel):
    """All tensors of one ggml type."""

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
    export_options: dict[str, Any]
    details: dict[str, Any]
    versions: dict[str, str]


class FileSummary(BaseModel):
    """A file's size in bytes and its digest."""

    name: str
    size: int
    sha256: str


class Description(BaseModel):
    """A model file or an artifact. tensors: by type, largest first; empty for an artifact."""

    kind: Literal["gguf", "artifact"]
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
    """Raises ModelFileError, or ArtifactError for a folder. Reads every file, for its digest."""
    return _describe_artifact(path) if path.is_dir() else _describe_gguf(path)


def _describe_gguf(path: Path) -> Description:
    with ModelFile.open(path) as model:
        tokenizer = build_tokenizer(model.metadata)
        special = read_special_tokens(model.metadata)
        tensors = _tensor_groups(model)
        size = path.stat().st_size
        return Description(
            kind="gguf",
            path=path,
            spec=model.spec,
            parameters=_parameters(model.spec),
            tensors=tensors,
            memory=_memory(model.spec, sum(group.bytes for group in tensors)),
            tokenizer=_tokenizer_summary(tokenizer, special, model.metadata.text(PRE_KEY)),
            chat_template=read_chat_template(model.metadata),
            files=[FileSummary(name=path.name, size=size, sha256=model.sha256)],
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
            export_options=manifest.export_options,
            details=manifest.details,
            versions=manifest.versions,
        ),
    )


def _parameters(spec: ModelSpec) -> int:
    return sum(int(np.prod(shape)) for shape in expected_tensors(spec).values())


def _tensor_groups(model: ModelFile) -> list[TensorGroup]:
    counts: Counter[str] = Counter()
    values: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in model.tensors.values():
        counts[tensor.type.name] += 1
        values[tensor.type.name] += tensor.n_values
        sizes[tensor.type.name] += tensor.n_bytes
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
