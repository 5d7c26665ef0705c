"""`astrai inspect`: what a model file or an artifact holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from astrai_cli.commands.parameters import JsonFlag, with_settings
from astrai_cli.commands.prepare import ModelArgument
from astrai_cli.commands.progress import show_progress
from astrai_cli.settings import Settings

if TYPE_CHECKING:
    from astrai_cli.manifest import ArtifactDraft, ArtifactVision
    from astrai_cli.models.inspect import Description

_MAX_TEMPLATE_LINES = 12


@with_settings("cache_dir")
def inspect(
    model: ModelArgument,
    *,
    as_json: JsonFlag = False,
    settings: Settings,
) -> None:
    """Describe a model: shapes, tensors, memory, tokenizer, template, digests."""
    from astrai_cli.models.inspect import describe
    from astrai_cli.models.resolve import resolve_model_file

    path = Path(model)
    if not path.is_dir():
        with show_progress() as progress:
            path = resolve_model_file(model, settings.config.model.cache_dir, progress)
    description = describe(path)
    if as_json:
        print(description.model_dump_json(indent=2))
    else:
        _print(description)


def _print(description: Description) -> None:
    from rich.text import Text

    from astrai_cli.chat.terminal import harmless
    from astrai_cli.commands.tables import stdout_console, table

    console = stdout_console()
    console.print(table(("", ""), _facts(description).items()))
    if description.tensors:
        rows = (
            (group.type, str(group.count), f"{group.values:,}", _size(group.bytes))
            for group in description.tensors
        )
        console.print(table(("tensor type", "count", "values", "size"), rows))
    files = ((file.name, _size(file.size), file.sha256) for file in description.files)
    console.print(table(("file", "size", "SHA-256"), files))
    lines = harmless(description.chat_template or "no chat template").splitlines()
    console.print(Text("\n".join(lines[:_MAX_TEMPLATE_LINES])))
    if len(lines) > _MAX_TEMPLATE_LINES:
        console.print(f"… {len(lines) - _MAX_TEMPLATE_LINES} more lines; --json has all")


def _facts(description: Description) -> dict[str, str]:
    spec, memory, tokenizer = description.spec, description.memory, description.tokenizer
    windows = sorted({window for window in spec.windows if window is not None})
    rows = {
        "path": str(description.path),
        "kind": description.kind,
        "model": f"{spec.name} ({spec.architecture})",
        "parameters": f"{description.parameters:,}",
        "layers": f"{spec.n_layers} of width {spec.width}, feed-forward {spec.ffn_width}",
        "heads": f"{spec.n_heads} query, {spec.n_kv_heads} key-value, of {spec.head_width}",
        "context": f"{spec.context_length:,} positions",
        "windows": ", ".join(map(str, windows)) or "none",
        "memory, weights": _size(memory.weights),
        "memory, 1,000 cached tokens": f"{_size(memory.cache_float16_per_1000_tokens)} float16, "
        f"{_size(memory.cache_float32_per_1000_tokens)} float32",
        "tokenizer": f"{tokenizer.vocab_size:,} tokens"
        + (f", pre-tokenizer {tokenizer.pre}" if tokenizer.pre else ""),
        "begins with": ", ".join(tokenizer.bos.values()) if tokenizer.add_bos else "nothing",
        "ends at": ", ".join(tokenizer.eos.values()),
    }
    if artifact := description.artifact:
        rows |= {
            "backend": artifact.backend,
            "made from": f"{artifact.source.name}, SHA-256 {artifact.source.sha256}",
            "most tokens a step": str(artifact.limits.max_prefill_chunk),
            "sees images": _images(artifact.vision),
            "drafts": _drafts(artifact.draft),
            "options": _pairs(artifact.export_options),
            "backend's notes": _pairs(artifact.details),
            "made with": _pairs(artifact.versions),
        }
    return rows


def _images(vision: ArtifactVision | None) -> str:
    if vision is None:
        return "no"
    spec, source = vision.spec, vision.mmproj
    origin = "" if source is None else f", made from {source.name}, SHA-256 {source.sha256}"
    return (
        f"{spec.n_layers} layers of width {spec.width}, {vision.max_patches} patches "
        f"of {spec.patch_size} pixels at most{origin}"
    )


def _drafts(draft: ArtifactDraft | None) -> str:
    if draft is None:
        return "no"
    cells = "" if draft.max_cells is None else f" and {draft.max_cells} cells"
    return (
        f"blocks of {draft.spec.max_block} at most, for {draft.max_owners} answers at once{cells}, "
        f"made from {draft.source.name}, SHA-256 {draft.source.sha256}"
    )


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"
