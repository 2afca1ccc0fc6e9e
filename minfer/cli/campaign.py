"""`minfer ceilings`, `minfer decompose`, `minfer report`: what a GPU can do, where a pass's time goes, the
campaign's tables."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from minfer.cli.common import JsonOption, ModelOption, RouteOption, print_json
from minfer.cli.tables import table


class Format(StrEnum):
    """What a report is written as."""

    markdown = "markdown"
    html = "html"


class Phase(StrEnum):
    """What is taken apart."""

    prefill = "prefill"
    decode = "decode"


class Source(StrEnum):
    """Who times the launches."""

    auto = "auto"
    cupti = "cupti"
    events = "events"
    graphs = "graphs"


def ceilings(
    record: Annotated[
        bool, typer.Option(help="Keep them: from then on they are what figures are compared with.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder to keep them in [default: data/reference].")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a GPU's memory and its tensor cores can do.

    Memory is copied and read: arrays of 1 GiB; a copy counts the bytes read and written. Tensor cores:
    kernels that only multiply random tiles which stay in shared memory, in bursts of 1.5 ms from rest and
    sustained for seconds, at the power that the card allows.
    """
    from minfer.arithmetic.reference import FOLDER
    from minfer.campaign.ceilings import measure_memory, write_ceilings
    from minfer.campaign.records import check_folder
    from minfer.campaign.tensor_ceilings import measure_tensor_cores
    from minfer.engine.cuda.devices import GpuDevice

    if record or out is not None:
        check_folder(out or FOLDER)
    device = GpuDevice()
    rates = measure_memory(device)
    if as_json:
        reached = measure_tensor_cores(device)
        print_json({"device": device.gpu.name} | rates | {"tensor_cores": [asdict(each) for each in reached]})
    else:
        typer.echo(f"copy {rates['copy_gb_s']:,} GB/s, read {rates['read_gb_s']:,} GB/s ({device.gpu.name})")
        reached = measure_tensor_cores(device, say=typer.echo)
    if record or out is not None:
        _tell(f"ceilings: {write_ceilings(device.gpu.name, rates, reached, out or FOLDER)}")


def decompose(
    model: ModelOption,
    phase: Annotated[
        Phase,
        typer.Option(help="A prefill of many tokens, or one decoded token, one kernel an operation."),
    ] = Phase.prefill,
    route: RouteOption = "auto",
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Tokens of the prefill [default: 2048].", show_default=False)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=0, help="Tokens before the decoded one [default: 128].", show_default=False),
    ] = None,
    source: Annotated[
        Source,
        typer.Option(
            help="CUPTI (package cupti-python), CUDA events, or a CUDA graph of each class's launches; auto: "
            "CUPTI where it can be had, graphs for a decode."
        ),
    ] = Source.auto,
    counters: Annotated[
        bool,
        typer.Option(
            "--counters", help="Read hardware counters of each class's largest launch too, by Nsight Compute."
        ),
    ] = False,
    record: Annotated[bool, typer.Option(help="Keep a record.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the record [default: data/records].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time every kernel launch of a pass on a GPU, by class of work.

    Fails if classes and gaps together differ from the wall clock by more than 2 %.
    """
    import os
    from dataclasses import replace

    from minfer.campaign.counters import read_counters
    from minfer.campaign.decompose import decompose as take_apart
    from minfer.campaign.document import wall_table
    from minfer.campaign.precompile import precompile
    from minfer.campaign.prefills import SharedModel, separate
    from minfer.campaign.records import FOLDER, check_folder, write_record
    from minfer.campaign.schema import plain
    from minfer.engine.cuda.devices import GpuDevice
    from minfer.engine.cuda.routes import check_route, choose_route
    from minfer.model.model import Model

    check_route(route)
    if record or out is not None:
        check_folder(out or FOLDER)
    if phase is Phase.decode:
        if tokens is not None:
            raise typer.BadParameter("a decode is of one token, after --context others: leave out --tokens")
        passed, before = 1, 128 if context is None else context
    else:
        if context is not None:
            raise typer.BadParameter("a prefill begins with no context: leave out --context")
        passed, before = tokens or 2048, 0
    device = GpuDevice()
    chosen = separate(choose_route(route, device.arch, os.environ))
    n_ctx = before + max(passed, 64)
    ahead = Model.load(model)
    precompile((), device.arch, model=ahead, routes=[chosen], prompts=(n_ctx, before or passed), say=_tell)
    # First, and in a process of its own, which needs the GPU's memory.
    counted = read_counters(model, phase.value, route, passed, before) if counters else {}
    shared = SharedModel(model, device, n_ctx, _tell)
    wall = take_apart(
        shared,
        chosen,
        phase.value,
        tokens=passed,
        context=before,
        source=source.value,
        say=_tell,
    )
    wall = replace(wall, counters=counted)
    if as_json:
        print_json(plain(wall))
    else:
        made = wall_table(wall)
        typer.echo(f"{made.title}\n{table([made.columns, *made.rows])}\n{made.note}")
    if record or out is not None:
        _tell(f"record: {write_record(wall, out or FOLDER, stem=wall.stem)}")


def report(
    style: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.markdown,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to [default: stdout].")
    ] = None,
    device: Annotated[str, typer.Option(help="Whose records: h200, gb10, ...")] = "h200",
    records: Annotated[
        Path | None, typer.Option(help="Folder of records [default: data/records of the repository].")
    ] = None,
    readme: Annotated[
        bool, typer.Option("--readme", help="Write the tables inside README.md instead.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if --readme would.")
    ] = False,
) -> None:
    """Write the campaign's tables from the records.

    The probes with the seed's verdicts, and the walls.
    """
    from minfer.campaign import document
    from minfer.campaign import report as readme_tables
    from minfer.campaign.records import FOLDER, RecordError, load_records
    from minfer.model.whole_file import whole_file

    if readme or check:
        if output is not None or records is not None or style is not Format.markdown or device != "h200":
            raise typer.BadParameter(
                "README.md's tables are of the repository's records: leave out --format, --output, --device "
                "and --records"
            )
        if status := readme_tables.main(["--check"] if check else []):
            raise typer.Exit(status)
        typer.echo(f"{readme_tables.README.name} is what the records give")
        return
    tables = document.document(load_records(records or FOLDER), device)
    text = document.html(tables) if style is Format.html else document.markdown(tables)
    if output is None:
        typer.echo(text, nl=False)
    else:
        with whole_file(output, len(text), RecordError) as part:
            part.write_text(text, encoding="utf-8")
        typer.echo(str(output))


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
