"""`minfer kernels`: what every shipped kernel config compiles to, and how many blocks of it an SM holds."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from minfer.cli.common import JsonOption, print_json
from minfer.cli.tables import table

WORTH_PROCESSES = 16  # kernels: fewer compile sooner than processes start


def kernels(
    arch: Annotated[
        list[str] | None,
        typer.Option(
            help="Architecture: sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a, sm_121a. Repeat for several."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device for blocks per SM (h200, gb10, ...); else the architecture's usual one."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only kernels whose name contains this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile every shipped kernel config and print what it uses.

    Needs no GPU. Exits with 1 if one does not compile, spills more than it may, or has its
    tensor cores serialised.
    """
    from tqdm import tqdm

    from minfer.arithmetic.devices import DEVICES
    from minfer.cuda import report
    from minfer.cuda.precompile import precompile
    from minfer.cuda.registry import all_kernels
    from minfer.cuda.runtime import cache

    chosen = list(dict.fromkeys(arch or ()))
    if not chosen:
        chosen = [DEVICES[device.lower()].arch if device and device.lower() in DEVICES else "sm_90a"]
    try:
        devices = {wanted: report.device_for(wanted, device) for wanted in chosen}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with tqdm(unit="kernel", disable=None, file=sys.stderr, leave=False) as progress:
        found = all_kernels(name or "", lambda module: progress.set_description(f"making {module}"))
        work = [(kernel, wanted) for wanted in chosen for kernel in found]
        if not work:
            raise typer.BadParameter(
                f"no shipped kernel's name contains {name!r}; `minfer probe examine` takes your own"
            )
        progress.set_description("compiling")
        progress.reset(len(work))
        if len(work) >= WORTH_PROCESSES:
            missing = sum(not cache.holds(*one) for one in work)
            tqdm.write(f"{missing} of {len(work)} kernels are to be compiled, some seconds each", sys.stderr)
            precompile(chosen, name or "", progress.update)
        rows = [report.describe(kernel, wanted, devices[wanted]) for kernel, wanted in work]
    if as_json:
        print_json(rows)
    else:
        typer.echo(table([report.HEADINGS, *(report.cells(row) for row in rows)]))
        typer.echo(report.LEGEND)
        typer.echo(f"blocks/SM on {', '.join(dict.fromkeys(d.name for d in devices.values()))}")
    if faulty := [row for row in rows if report.is_faulty(row)]:
        typer.echo(f"{len(faulty)} of {len(rows)} kernels need attention (see notes)", err=True)
        raise typer.Exit(1)
