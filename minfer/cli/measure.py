"""`minfer bench` and `minfer perplexity`: how fast a model runs, and how well."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    print_json,
    read_text,
)

if TYPE_CHECKING:
    from minfer.campaign import against
    from minfer.campaign.records import Measured
    from minfer.engine.bench import BenchResult


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
            max=3600,
            metavar="SECONDS",
            help="Run each test so long, and until its speed is steady, before it is timed; 0: a burst.",
        ),
    ] = 0,
    against: Annotated[
        Against | None,
        typer.Option(
            help="Measure a 7B's products and attention of -p tokens beside cuBLAS's and cuDNN's "
            "instead: needs torch, no model."
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="With --against: each side by itself, 0.7 s a round, at its own clock; tells power too.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="With --against: products of F16, Q4_K, Q6_K or Q4_K+Q6_K weights, or attention; may be "
            "given again [default: all; with --alone F16].",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure prefills of -p tokens with this variant of the route f16, beside f16 and by turns; "
            "may be given again; all: every one. An unknown name gets a list of them.",
        ),
    ] = None,
    kv_type: KVTypeOption = KVType.f16,
    backend: BackendOption = Backend.auto,
    route: Annotated[
        str,
        typer.Option(
            "--route",
            help="As for `run`; or several, separated by commas: each in turn on one copy of the weights.",
        ),
    ] = "auto",
    weights: WeightsOption = Weights.auto,
    record: Annotated[bool, typer.Option(help="Keep a record (of a GPU's speeds).")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the record [default: data/records].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure prefill (pp) and decode (tg) in tokens a second.

    As llama-bench does. Without -p and -n: pp512 and tg128. pp N is one prompt of N tokens, with
    the logits of the last one only; tg N is N single-token decodes from an empty context, of tokens that the
    GPU chooses itself, as in greedy generation (of random ones on the host). Nothing is tokenized.
    """
    keep = record or out is not None
    if keep:
        from minfer.campaign.records import FOLDER, check_folder

        check_folder(out or FOLDER)
    if against is not None:
        of_models = (backend, route, weights, kv_type) != ("auto", "auto", "auto", "f16")
        if model or variant or generate or of_models:
            raise typer.BadParameter(
                "--against measures kernels, no model: leave out -m, -n, --variant, --backend, --route, "
                "--weights and --kv-type"
            )
        regime = {"sustained": sustained, "alone": alone, "only": only}
        _bench_against(
            prompt or [512, 2048, 8192], repetitions, keep=keep, out=out, as_json=as_json, **regime
        )
        return
    if alone or only:
        raise typer.BadParameter("--alone and --only are for comparisons: give --against torch")
    if model is None:
        raise typer.BadParameter("give a model: -m MODEL (only --against needs none)")
    if variant:
        if (backend, route, weights) != ("auto", "auto", "auto") or generate or sustained:
            raise typer.BadParameter(
                "--variant chooses route and weights itself, and measures bursts of prefills: leave out "
                "--backend, --route, --weights, --sustained and -n"
            )
        if prompt is not None and (len(prompt) > 1 or not prompt[0]):
            raise typer.BadParameter("--variant measures one prompt: give -p once, above 0")
        _bench_variants(model, variant, (prompt or [2048])[0], repetitions, keep, out, as_json)
        return
    tests = {
        "prompts": [512] if prompt is None else prompt,
        "generations": [128] if generate is None else generate,
        "repetitions": repetitions,
        "sustained": sustained,
        "on_sample": _progress if sys.stderr.isatty() else None,
    }
    if "," in route:
        if (backend, weights, kv_type) != ("auto", "auto", "f16"):
            raise typer.BadParameter("several routes: leave out --backend, --weights and --kv-type")
        from minfer.campaign.route_benches import bench_routes

        runs, why = bench_routes(model, route.split(","), **tests, say=_tell), ""
    else:
        runs, why = _bench_route(model, backend, route, weights, kv_type, keep, tests)
    found = []
    for results in runs:
        found += results
        if not as_json:
            _print_results(results, "," in route)
        if keep:
            _keep_bench(results, out, route=route, weights=weights.value, sustained=sustained)
    if as_json:
        print_json([result.as_dict() for result in found])
    elif why:
        _tell(why)


def _bench_route(
    model: str, backend: Backend, route: str, weights: Weights, kv_type: KVType, keep: bool, tests: dict
) -> tuple[list[list[BenchResult]], str]:
    """The tests' results on one route, and why it is on this backend."""
    from minfer.engine.backend import choose_backend
    from minfer.engine.bench import bench
    from minfer.engine.progress import progress_bar
    from minfer.model.model import Model

    loaded = Model.load(model)
    chosen, why = choose_backend(backend.value, route, weights.value)
    if keep and chosen.name != "cuda":
        raise typer.BadParameter(f"records are of a GPU's speeds: leave out --record and --out ({why})")
    return [bench(loaded, chosen, **tests, kv_dtype=kv_type.value, progress=progress_bar())], why


def _keep_bench(results: list[BenchResult], out: Path | None, **options: str | float) -> None:
    """Write a record of a route's results; options: of the command that measured them."""
    from minfer.campaign.environment import stamps
    from minfer.campaign.records import Bench
    from minfer.cuda.runtime import device

    _keep(Bench(**stamps(device()), command=_command(results, **options), results=results), out)


def _print_results(results: list[BenchResult], named: bool) -> None:
    """A line a test; named: each with its route."""
    for result in results:
        name = f"{result.settings['route']:<13} {result.test}" if named else result.test
        print(_line(name, result, 22 if named else 8), flush=True)


def _bench_variants(
    model: str, names: list[str], tokens: int, repetitions: int, keep: bool, out: Path | None, as_json: bool
) -> None:
    """Print each variant's speed, in the order of their table."""
    from minfer.campaign.sweep import sweep

    found = sweep(model, names, tokens, repetitions, _tell)
    if as_json:
        print_json([result.as_dict() for result in found.results])
    else:
        for name, result in found.variants.items():
            print(_line(name, result, 26))
    if keep:
        _keep(found, out)


def _keep(record: Measured | against.Against, out: Path | None) -> None:
    from minfer.campaign.records import FOLDER, write_record

    _tell(f"record: {write_record(record, out or FOLDER, stem=record.stem)}")


def _command(results: list[BenchResult], **options: str | float) -> str:
    """The command line that measures this again."""
    lengths = [f"-p {r.n_prompt}" if r.n_prompt else f"-n {r.n_gen}" for r in results]
    given = [f"--{name} {value}" for name, value in options.items() if value not in ("auto", 0)]
    first = results[0]
    repetitions = f"-r {len(first.samples_ns)}"
    return " ".join(["minfer bench -m", first.model_filename, *lengths, repetitions, *given])


def _line(name: str, result: BenchResult, width: int = 8) -> str:
    """A result in a line."""
    speed = f"{name:<{width}} {result.avg_ts:>10,.1f} ± {result.stddev_ts:,.1f} tok/s"
    return speed + _conditions(result.regime, result.sensors)


def _bench_against(
    tokens: list[int],
    rounds: int,
    *,
    sustained: float,
    alone: bool,
    only: list[str] | None,
    keep: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print our speed, the other library's and their ratio, contest by contest."""
    from minfer.campaign.against import KINDS, WEIGHTS, geometric_mean
    from minfer.campaign.contests import contests
    from minfer.campaign.side_by_side import compare, compare_alone

    tokens = [n for n in dict.fromkeys(tokens) if n]
    if not tokens:
        raise typer.BadParameter("--against measures prompts: give -p above 0")
    if unknown := set(only or ()) - set(KINDS):
        raise typer.BadParameter(f"--only {', '.join(sorted(unknown))}: kinds are {', '.join(KINDS)}")
    if alone and sustained:
        raise typer.BadParameter("--alone and --sustained are two regimes: leave one out")
    makers = contests(tokens, only or (("F16",) if alone else KINDS))
    on_row = None if as_json else lambda row: print(row, flush=True)
    if alone:
        rows = compare_alone(makers, rounds, on_row)
    else:
        rows = compare(makers, rounds, sustained, on_row)
    if as_json:
        print_json([row.as_dict() for row in rows])
    else:
        for weights in WEIGHTS:
            if alike := [row for row in rows if row.weights == weights]:
                lowest = min(row.ratio for row in alike)
                what = f"products of {weights} weights" if weights else "attention"
                print(f"{what}: geometric mean {geometric_mean(alike):.3f}, lowest {lowest:.3f}")
    if keep:
        from importlib.metadata import version

        from minfer.campaign.against import Against as Comparisons
        from minfer.campaign.environment import stamps
        from minfer.cuda.runtime import device

        lengths = " ".join(f"-p {n}" for n in tokens)
        regime = "--alone" if alone else f"--sustained {sustained:g}"
        kinds = "".join(f" --only {kind}" for kind in only or ())
        command = f"minfer bench --against torch {lengths} -r {rounds} {regime}{kinds}"
        library = f"torch {version('torch')}"
        _keep(Comparisons(**stamps(device()), command=command, library=library, results=rows), out)


def _conditions(regime: str, sensors: dict[str, float]) -> str:
    """What a speed was measured under, where there is something to say."""
    units = {"sm_mhz": "{:.0f} MHz", "power_w": "{:.0f} W", "temperature_c": "{:.0f} °C"}
    said = [text.format(sensors[name]) for name, text in units.items() if name in sensors]
    if regime != "burst":
        said.insert(0, regime)
    return f"  ({', '.join(said)})" if said else ""


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
    """Measure how well a model predicts a text.

    As llama.cpp does: the second half of each window counts.
    """
    from minfer.engine.backend import choose_backend
    from minfer.engine.perplexity import perplexity as measure
    from minfer.engine.progress import progress_bar
    from minfer.engine.session import Session
    from minfer.model.model import Model

    text = read_text(file)
    loaded = Model.load(model)
    tokenizer = loaded.tokenizer
    chosen, why = choose_backend(backend.value, route, weights.value)
    result = measure(
        Session(loaded, chosen, n_ctx=context, kv_dtype=kv_type.value, progress=progress_bar()),
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
