"""`minfer kernels`: what every shipped kernel config compiles to, and how many blocks of it an SM holds."""

from __future__ import annotations

import json as json_format
import sys
from typing import Annotated

import typer


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
    json: Annotated[bool, typer.Option("--json", help="A JSON list of rows instead of a table.")] = False,
) -> None:
    """Compile every shipped kernel config, without a GPU, and print what it uses.

    Exits with 1 if one does not compile, spills more than it may, or has its tensor cores serialised.
    """
    from tqdm import tqdm

    from minfer.arithmetic.devices import DEVICES
    from minfer.cuda import report
    from minfer.cuda.kernel import ToolchainError
    from minfer.cuda.registry import all_kernels
    from minfer.cuda.runtime.compiler import ARCHITECTURES

    chosen = arch or ([DEVICES[device.lower()].arch] if device and device.lower() in DEVICES else ["sm_90a"])
    try:
        for wanted in chosen:
            if wanted not in ARCHITECTURES:
                raise ValueError(f"--arch {wanted}: take one of {', '.join(ARCHITECTURES)}")
        devices = {wanted: report.device_for(wanted, device) for wanted in chosen}
        work = [
            (kernel, wanted) for wanted in chosen for kernel in all_kernels() if (name or "") in kernel.name
        ]
        if not work:
            raise ValueError(f"no shipped kernel's name contains {name!r}")
        with tqdm(work, unit="kernel", disable=None, file=sys.stderr, leave=False) as progress:
            rows = []
            for kernel, wanted in progress:
                progress.set_postfix_str(kernel.name, refresh=False)
                rows.append(report.describe(kernel, wanted, devices[wanted]))
    except (ValueError, ToolchainError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if json:
        typer.echo(json_format.dumps(rows, indent=1))
    else:
        typer.echo(_table([report.HEADINGS, *(report.cells(row) for row in rows)]))
        typer.echo(f"blocks/SM on {', '.join(dict.fromkeys(d.name for d in devices.values()))}")
    if faulty := [row for row in rows if report.is_faulty(row)]:
        typer.echo(f"{len(faulty)} of {len(rows)} kernels need attention (see notes)", err=True)
        raise typer.Exit(1)


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(lines)
