"""`minfer pull`, `minfer inspect` and `minfer synth`: model files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minfer.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    from minfer.model.summary import ModelSummary

_LONG_VALUE = 100  # characters of a metadata value that are shown


def pull(
    name: Annotated[str, typer.Argument(help="smollm2-135m, qwen2.5-0.5b, qwen2.5-1.5b or qwen2.5-7b.")],
) -> None:
    """Fetch a model by name, once.

    Later commands take the name as -m NAME.
    """
    from minfer.model.registry import pull as fetch

    print(fetch(name, progress=True))


def synth(
    preset: Annotated[str, typer.Argument(help="qwen2-tiny, qwen2.5-0.5b, qwen2.5-1.5b or qwen2.5-7b.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The GGUF file to write [default: among the pulled models, where -m PRESET-synth finds it].",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed, other weights.")] = 0,
) -> None:
    """Write a GGUF file of a real model's shape with random weights."""
    from minfer.model.registry import synthetic_path
    from minfer.model.synth import synth as write

    print(write(preset, output or synthetic_path(preset), seed=seed, progress=True))


def inspect(
    model: Annotated[str, typer.Argument(help="A GGUF file, or the name of a pulled model.")],
    context: Annotated[
        int | None,
        typer.Option(
            "-c",
            "--ctx",
            min=1,
            max=2**31 - 1,
            help="Tokens of context to count memory for [default: the model's].",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model file: metadata, tensors by type, memory needed."""
    from minfer.model.gguf_file import GGUFFile
    from minfer.model.registry import resolve
    from minfer.model.summary import summarize

    summary = summarize(GGUFFile.open(resolve(model)), context)
    if as_json:
        print_json(_as_json(summary))
    else:
        print("\n".join(_as_text(summary)))


def _as_json(summary: ModelSummary) -> dict[str, Any]:
    runs = summary.config is not None
    return {
        "files": list(summary.paths),
        "file_bytes": summary.file_bytes,
        "gguf_version": summary.version,
        "metadata": summary.metadata,
        "tensors": summary.n_tensors,
        "parameters": summary.n_elements,
        "types": {
            use.type.name: {"tensors": use.count, "weights": use.n_elements, "bytes": use.nbytes}
            for use in summary.types
        },
        "weights_bytes": summary.weights_bytes,
        "runs": runs,
        "why_not": summary.problem,
        "n_ctx": summary.n_ctx,
        "kv_cache_f16_bytes": summary.kv_bytes,
        "memory_bytes": summary.weights_bytes + summary.kv_bytes if runs else None,
    }


def _as_text(summary: ModelSummary) -> list[str]:
    lines = [*summary.paths, f"GGUF version {summary.version}", "", "metadata"]
    for key, value in summary.metadata.items():
        shown = value if len(value) <= _LONG_VALUE else f"{value[:_LONG_VALUE]}... ({len(value)} characters)"
        lines.append(f"  {key:<42} {repr(shown) if chr(10) in shown else shown}")
    lines += ["", f"tensors: {summary.n_tensors}, {summary.n_elements:,} parameters"]
    for use in summary.types:
        lines.append(
            f"  {use.type.name:<6} {use.count:>5} tensors {use.n_elements:>15,} weights "
            f"{_size(use.nbytes):>10} {use.nbytes * 8 / use.n_elements:>8.4g} bits a weight"
        )
    lines.append("")
    if summary.config is not None:
        lines.append(
            f"memory: {_size(summary.weights_bytes + summary.kv_bytes)} = "
            f"weights {_size(summary.weights_bytes)} (mapped from the file) + "
            f"f16 KV cache {_size(summary.kv_bytes)} for {summary.n_ctx:,} tokens"
        )
    else:
        lines.append(f"minfer cannot run this file: {summary.problem}")
    return lines


def _size(n_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.4g} {unit}"
    return f"{n_bytes} B"
