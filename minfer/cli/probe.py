"""`minfer probe`: list the campaign's probes, show one, run some."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from minfer.cli.common import JsonOption, check_text, print_json
from minfer.cli.tables import table

app = typer.Typer(help="Questions about two configs: gates, A/B, verdict, record.")

PathsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--probes", metavar="PATH", help="A file or folder with probes of your own; may be repeated."
    ),
]


@app.command("list")
def list_(probes: PathsOption = None, as_json: JsonOption = False) -> None:
    """List every probe: the seed's verdict, and ours by device. Needs no GPU."""
    from minfer.campaign.discovery import find
    from minfer.campaign.records import load_records
    from minfer.campaign.table import probe_rows

    rows = probe_rows(find(probes or ()).values(), load_records(kind="probe"))
    if as_json:
        print_json(rows)
        return
    headings = ("probe", "question", "seed", "ours")
    cells = [
        (
            row["probe"],
            row["title"],
            row["seed verdict"] or "-",
            ", ".join(f"{key}: {run['verdict']}" for key, run in row["runs"].items()) or "not run",
        )
        for row in rows
    ]
    typer.echo(table([headings, *cells]))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A probe's name; `minfer probe list` has them.")],
    probes: PathsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one probe: hypothesis, prediction, configs, gates, the seed's figures, our runs. Needs no GPU."""
    from minfer.campaign.discovery import choose
    from minfer.campaign.records import load_records
    from minfer.campaign.table import describe, probe_rows

    (probe,) = choose([name], probes or ())
    runs = [run for run in load_records(kind="probe") if run.probe == probe.name]
    if as_json:
        print_json(probe_rows([probe], runs)[0])
    else:
        typer.echo(describe(probe, runs))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The probe's name: small letters, digits, dots, hyphens.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file [default: the name, in this folder].")
    ] = None,
) -> None:
    """Write a probe's file to begin with: a kernel with its config, workload and reference, which runs as it
    is."""
    from minfer.campaign.discovery import write_new

    path = out or Path(re.sub(r"[.-]", "_", name) + ".py")
    write_new(name, path)
    typer.echo(f"{path}: edit it, then\n  minfer probe examine {name} --probes {path}")
    typer.echo(f"  minfer probe run {name} --probes {path}")


@app.command()
def examine(
    name: Annotated[str, typer.Argument(help="A probe's name; `minfer probe list` has them.")],
    arch: Annotated[
        str, typer.Option(help="Architecture to compile for (`minfer kernels` lists them).")
    ] = "sm_90a",
    lines: Annotated[int, typer.Option(min=1, help="Lines of source shown a side.")] = 8,
    probes: PathsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what can be known of a probe's kernels before they are timed. Needs no GPU.

    Parity and races in the simulator; registers, shared memory, blocks an SM and machine instructions by the
    compiler; sectors and bank conflicts line by line; the least time that its bytes and FLOP can take. Exits
    with 1 if a gate failed, or a kernel does not compile or is not for the architecture.
    """
    from dataclasses import asdict

    from tqdm import tqdm

    from minfer.campaign.discovery import choose
    from minfer.campaign.examine import RESOURCES, examine
    from minfer.lab.table import Table

    (probe,) = choose([name], probes or ())
    quiet = True if as_json else None  # None: where stderr is no terminal
    with tqdm(bar_format="{desc} ({elapsed})", disable=quiet, file=sys.stderr, leave=False) as progress:
        found = examine(probe, arch, on_step=progress.set_description_str)
    if as_json:
        print_json(
            {
                "probe": found.probe,
                "right": found.right,
                "gates": [asdict(gate) for gate in found.gates],
                "not_run": [asdict(gate) for gate in found.not_run],
                "kernels": found.resource_rows(),
                "instructions": found.instruction_rows(),
                "memory": found.memory_rows(),
                "least": found.least,
            }
        )
    else:
        for gate in found.gates:
            typer.echo(f"gate {gate.name}: {'passed' if gate.passed else 'FAILED'}: {gate.found}")
        used, columns = found.resource_rows(), {name: name for name in RESOURCES}
        typer.echo(f"\nCompiled for {found.arch}; an SM of {found.device} holds:\n\n{Table(used, columns)}")
        for note in found.notes():
            typer.echo(note)
        shown = {
            "Machine instructions": found.instruction_rows(),
            f"Sectors of global memory and wavefronts of shared memory, case {found.case}": found.memory_rows(
                lines
            ),
            f"The least time of a measured case by the rates of {found.device}": found.least,
        }
        for heading, rows in shown.items():
            if rows:
                typer.echo(f"\n{heading}:\n\n{Table(rows)}")
    if not found.right:
        raise typer.Exit(1)


TIMED = ("model", "rounds", "prefill_rounds", "tokens", "out", "within", "ahead")
"""Options of `run` that only a GPU has a use for."""


@app.command()
def run(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Probes to run.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run every probe.")] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="gpu, the number of one, or simulator: the gates alone, on small cases, and no record.",
        ),
    ] = "gpu",
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Time whole prefills (of a token's kernels, decodes) of this model too: a GGUF file or a "
            "pulled name.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each kernel's A/B.")] = 30,
    prefill_rounds: Annotated[
        int,
        typer.Option(min=1, help="Rounds of the whole pass's A/B; fewer than 6 measure, and decide nothing."),
    ] = 15,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of a prefill; of a decode at most 128.")] = 2048,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the records [default: data/records of the repository].")
    ] = None,
    within: Annotated[
        float,
        typer.Option(
            min=0,
            show_default=False,
            help="Seconds after which no further probe is begun; not a failure [default: no limit].",
        ),
    ] = float("inf"),
    ahead: Annotated[
        bool, typer.Option(help="Compile every kernel first, in parallel; else each at its launch.")
    ] = True,
    probes: PathsOption = None,
) -> None:
    """Run probes on a GPU and write a record of each: gates, then the interleaved A/B, then the verdict.

    The exit status is 0 if every probe that was begun left a record with all gates passed, whatever its
    verdict; 1 if a gate failed or a run left no record; 2 if nothing could be run.
    """
    from minfer.campaign import session
    from minfer.campaign.discovery import choose, find
    from minfer.campaign.records import FOLDER, check_folder
    from minfer.cuda.kernel import NoDevice

    if bool(names) == everything:
        raise typer.BadParameter("name the probes to run, or give --all")
    paths = probes or ()
    chosen = list(find(paths).values()) if everything else choose(names or (), paths)
    if device == "simulator":
        given = [name for name in TIMED if context.get_parameter_source(name).name == "COMMANDLINE"]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise typer.BadParameter(f"the simulator runs the gates alone: leave out {names}")
        failed = session.simulate(chosen, typer.echo)
    else:
        if device.isascii() and device.isdigit():
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        elif device != "gpu":
            raise typer.BadParameter(f"--device {device}: gpu, the number of a GPU, or simulator")
        check_folder(out or FOLDER)
        try:
            failed = session.run(
                chosen,
                model=model,
                rounds=rounds,
                prefill_rounds=prefill_rounds,
                tokens=tokens,
                folder=out,
                within_s=within,
                ahead=ahead,
                say=typer.echo,
            )
        except NoDevice as error:
            raise NoDevice(f"{error} (the gates alone: --device simulator)") from None
    if failed:
        print(f"minfer: a gate failed, or nothing was recorded: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def note(
    record: Annotated[Path, typer.Argument(help="The record of a run.")],
    mechanism: Annotated[str | None, typer.Option(help="Why it turned out so.")] = None,
    retry: Annotated[str | None, typer.Option(help="When to measure again.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why the verdict differs from the seed's.")] = None,
) -> None:
    """Write into a run's record what you made of it. What was measured stays."""
    from minfer.campaign.records import annotate
    from minfer.campaign.table import describe_run

    words = {"mechanism": mechanism, "retry": retry, "reason": reason}
    given = {name: check_text(text, f"--{name}") for name, text in words.items() if text is not None}
    if not given:
        raise typer.BadParameter("give at least one of --mechanism, --retry and --reason")
    typer.echo(describe_run(annotate(record, **given)))
