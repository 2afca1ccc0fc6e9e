"""`minfer pull`, `minfer inspect` and `minfer synth`: model files."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minfer.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    from minfer.model.gguf_file import GGUFFile

_LONG_VALUE = 100  # characters of a metadata value that are shown


def pull(
    name: Annotated[str, typer.Argument(help="smollm2-135m, qwen2.5-0.5b, qwen2.5-1.5b or qwen2.5-7b.")],
) -> None:
    """Fetch a model by name, once; later commands take the name as -m NAME."""
    from minfer.model.registry import pull as fetch

    print(fetch(name, progress=True))


def synth(
    preset: Annotated[str, typer.Argument(help="qwen2-tiny, qwen2.5-0.5b, qwen2.5-1.5b or qwen2.5-7b.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The GGUF file to write.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed, other weights.")] = 0,
) -> None:
    """Write a GGUF file of a real model's shape with random weights."""
    from minfer.model.synth import synth as write

    write(preset, output, seed=seed, progress=True)
    print(output)


def inspect(
    model: Annotated[str, typer.Argument(help="A GGUF file, or the name of a pulled model.")],
    context: Annotated[
        int | None,
        typer.Option(
            "-c", "--ctx", min=1, help="Tokens of context to count memory for [default: the model's]."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model file: metadata, tensors by type, and the memory that it needs."""
    from minfer.model.gguf_file import GGUFFile
    from minfer.model.registry import resolve

    summary = summarize(GGUFFile.open(resolve(model)), context)
    if as_json:
        print_json(summary)
    else:
        print("\n".join(_as_text(summary)))


def summarize(file: GGUFFile, context: int | None = None) -> dict[str, Any]:
    """What `inspect` shows. Memory in bytes: the weights as mapped, the f16 KV cache of `context` tokens.

    A file that opens but that minfer cannot run (another architecture, no tensors) has `runs` false and
    says why.
    """
    types: dict[str, Counter[str]] = {}
    for tensor in file.tensors.values():
        counts = types.setdefault(tensor.type.name, Counter())
        counts.update(tensors=1, elements=tensor.n_elements, bytes=tensor.nbytes)
    weights = sum(counts["bytes"] for counts in types.values())
    return {
        "files": [str(path) for path in file.paths],
        "gguf_version": file.version,
        "metadata": {key: _shown(file, key) for key in file.metadata},
        "tensors": len(file.tensors),
        "parameters": sum(counts["elements"] for counts in types.values()),
        "types": {
            name: dict(counts) for name, counts in sorted(types.items(), key=lambda item: -item[1]["bytes"])
        },
        "weights_bytes": weights,
        **_needs(file, context, weights),
    }


def _needs(file: GGUFFile, context: int | None, weights: int) -> dict[str, Any]:
    from minfer.model.errors import ModelFileError
    from minfer.model.model import Model

    try:
        config = Model(file).config
    except ModelFileError as error:
        return {"runs": False, "why_not": str(error)}
    context = context or config.context_length
    kv_bytes = 2 * config.n_layers * config.n_kv_heads * config.head_dim * 2 * context
    return {
        "runs": True,
        "context": context,
        "kv_cache_f16_bytes": kv_bytes,
        "memory_bytes": weights + kv_bytes,
    }


def _shown(file: GGUFFile, key: str) -> Any:
    length = file.metadata.array_length(key)
    if length is not None and length > 16:
        return f"array of {length}"
    value = file.metadata[key]
    return [_finite(item) for item in value] if isinstance(value, list) else _finite(value)


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: those are shown as text."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_text(summary: dict[str, Any]) -> list[str]:
    lines = [f"{path}" for path in summary["files"]]
    lines += [f"GGUF version {summary['gguf_version']}", "", "metadata"]
    for key, value in summary["metadata"].items():
        text = value if isinstance(value, str) else repr(value)
        text = text if len(text) <= _LONG_VALUE else f"{text[:_LONG_VALUE]}... ({len(text)} characters)"
        lines.append(f"  {key:<42} {text!r}" if "\n" in text else f"  {key:<42} {text}")
    lines += ["", f"tensors: {summary['tensors']}, {summary['parameters']:,} parameters"]
    for name, counts in summary["types"].items():
        bits = counts["bytes"] * 8 / counts["elements"]
        lines.append(
            f"  {name:<6} {counts['tensors']:>5} tensors {counts['elements']:>15,} weights "
            f"{_size(counts['bytes']):>10} {bits:>8.4g} bits a weight"
        )
    lines.append("")
    if summary["runs"]:
        lines.append(
            f"memory: {_size(summary['memory_bytes'])} = weights {_size(summary['weights_bytes'])} "
            f"(mapped from the file) + f16 KV cache {_size(summary['kv_cache_f16_bytes'])} "
            f"for {summary['context']:,} tokens"
        )
    else:
        lines.append(f"minfer cannot run this file: {summary['why_not']}")
    return lines


def _size(n_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.4g} {unit}"
    return f"{n_bytes} B"
