"""`minfer bench` and `minfer perplexity`: how fast a model runs, and how well."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from minfer.cli.common import (
    Backend,
    BackendOption,
    JsonOption,
    KVType,
    KVTypeOption,
    ModelOption,
    RouteOption,
    Weights,
    WeightsOption,
    loading_bar,
    print_json,
    read_text,
)


class Against(StrEnum):
    """Whose kernels ours are compared with."""

    torch = "torch"


def bench(
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", metavar="MODEL", help="A GGUF file, or the name of a pulled model."),
    ] = None,
    prompt: Annotated[
        list[int] | None,
        typer.Option("-p", "--n-prompt", min=0, help="Prompt tokens; 0: no such test; may be given again."),
    ] = None,
    generate: Annotated[
        list[int] | None,
        typer.Option("-n", "--n-gen", min=0, help="Tokens to decode; 0: no such test; may be given again."),
    ] = None,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", min=1, help="Runs of each test.")] = 5,
    sustained: Annotated[
        float,
        typer.Option(
            "--sustained",
            min=0,
            metavar="SECONDS",
            help="Run each test so long, and until its speed is steady, before it is timed; 0: a burst.",
        ),
    ] = 0,
    against: Annotated[
        Against | None,
        typer.Option(
            help="Measure a 7B's products of -p tokens against cuBLAS instead: needs torch, no model."
        ),
    ] = None,
    kv_type: KVTypeOption = KVType.f16,
    backend: BackendOption = Backend.auto,
    route: RouteOption = "auto",
    weights: WeightsOption = Weights.auto,
    as_json: JsonOption = False,
) -> None:
    """Measure prefill (pp) and decode (tg) in tokens a second, as llama-bench does.

    Without -p and -n: pp512 and tg128. pp N is one prompt of N tokens, with the logits of the last one only;
    tg N is N single-token decodes from an empty context. Nothing is tokenized or sampled.
    """
    if against is not None:
        _bench_against(prompt or [512, 2048, 8192], repetitions, sustained, as_json)
        return
    if model is None:
        raise typer.BadParameter("give a model: -m MODEL (only --against needs none)")
    from minfer.engine.backend import choose_backend
    from minfer.engine.bench import bench as measure
    from minfer.model.model import Model

    loaded = Model.load(model)
    chosen, why = choose_backend(backend.value, route, weights.value)
    results = measure(
        loaded,
        chosen,
        prompts=[512] if prompt is None else prompt,
        generations=[128] if generate is None else generate,
        repetitions=repetitions,
        kv_dtype=kv_type.value,
        sustained=sustained,
        on_sample=_progress if sys.stderr.isatty() else None,
    )
    if as_json:
        print_json([result.as_dict() for result in results])
        return
    for result in results:
        speed = f"{result.test:<8} {result.avg_ts:>10,.1f} ± {result.stddev_ts:,.1f} tok/s"
        print(speed + _conditions(result.regime, result.sensors))
    print(why, file=sys.stderr)


def _bench_against(tokens: list[int], rounds: int, sustained: float, as_json: bool) -> None:
    """Print each product's speed, cuBLAS's, and their ratio."""
    from minfer.campaign.against import compare_products, geometric_mean

    tokens = [n for n in tokens if n]
    if not tokens:
        raise typer.BadParameter("--against measures prompts: give -p above 0")
    rows = compare_products(
        tokens, rounds=rounds, soak=sustained, on_row=None if as_json else lambda row: print(row, flush=True)
    )
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    print(f"geometric mean {geometric_mean(rows):.3f}, lowest {min(row.ratio for row in rows):.3f}")


def _conditions(regime: str, sensors: dict[str, float]) -> str:
    """What a speed was measured under, where there is something to say."""
    units = {"sm_mhz": "{:.0f} MHz", "power_w": "{:.0f} W", "temperature_c": "{:.0f} °C"}
    said = [text.format(sensors[name]) for name, text in units.items() if name in sensors]
    if regime != "burst":
        said.insert(0, regime)
    return f"  ({', '.join(said)})" if said else ""


def _progress(test: str, done: int, of: int) -> None:
    print(
        f"\r{test}: {done} of {of}" + ("\r\033[K" if done == of else ""), end="", file=sys.stderr, flush=True
    )


def perplexity(
    model: ModelOption,
    file: Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="A UTF-8 text (-: stdin).")],
    context: Annotated[int, typer.Option("-c", "--ctx", min=4, help="Tokens of a window.")] = 512,
    chunks: Annotated[
        int | None, typer.Option("--chunks", min=1, help="Windows to score [default: the whole text].")
    ] = None,
    kv_type: KVTypeOption = KVType.f16,
    backend: BackendOption = Backend.auto,
    route: RouteOption = "auto",
    weights: WeightsOption = Weights.auto,
    as_json: JsonOption = False,
) -> None:
    """Measure how well a model predicts a text, as llama.cpp does: the second half of each window counts."""
    from minfer.engine.backend import choose_backend
    from minfer.engine.perplexity import perplexity as measure
    from minfer.engine.session import Session
    from minfer.model.model import Model

    text = read_text(file)
    loaded = Model.load(model)
    tokenizer = loaded.tokenizer
    chosen, why = choose_backend(backend.value, route, weights.value)
    result = measure(
        Session(loaded, chosen, n_ctx=context, kv_dtype=kv_type.value, progress=loading_bar()),
        tokenizer.encode(text, parse_special=False),
        window=context,
        bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
        chunks=chunks,
        on_chunk=None if as_json else lambda done, of, value: print(f"[{done}/{of}] {value:.4f}", flush=True),
    )
    if as_json:
        print_json(
            {
                "model": model,
                "backend": chosen.name,
                "n_ctx": context,
                "chunks": len(result.running),
                "scored_tokens": result.scored_tokens,
                "perplexity": result.perplexity,
                "error": result.error,
                "running": result.running,
            }
        )
        return
    print(f"perplexity {result.perplexity:.4f} ± {result.error:.4f} over {result.scored_tokens:,} tokens")
    print(why, file=sys.stderr)
