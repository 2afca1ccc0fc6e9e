"""What a kernel uses on an architecture and how it fills a device: the rows of `minfer kernels`."""

from __future__ import annotations

from typing import Any

from minfer.arithmetic.devices import DEVICES, DeviceSpec
from minfer.arithmetic.occupancy import LIMITERS, Occupancy, blocks_per_sm
from minfer.cuda.kernel import CompileError, Kernel
from minfer.cuda.runtime.compiler import compile_kernel, refusal
from minfer.cuda.runtime.resources import Resources

FIELDS = (
    "kernel",
    "config",
    "arch",
    "registers",
    "static_smem",
    "dynamic_smem",
    "spill_bytes",
    "stack_bytes",
    "warnings",
    "instructions",
    "device",
    "blocks_per_sm",
    "limiter",
)

# The device whose occupancy is shown for an architecture unless another is asked for.
TYPICAL_DEVICES = {
    "sm_80": "a100-80gb",
    "sm_86": "rtx3090",
    "sm_89": "rtx4090",
    "sm_90a": "h200",
    "sm_100a": "b200",
    "sm_120a": "rtx5090",
    "sm_121a": "gb10",
}


def device_for(arch: str, key: str | None = None) -> DeviceSpec:
    """The device to show occupancy on: `key` from minfer.arithmetic's table, or the architecture's typical
    one.

    Raises:
        ValueError: no such architecture or device, or the device is of another architecture.
    """
    if arch not in TYPICAL_DEVICES:
        raise ValueError(f"no architecture {arch!r} here: take one of {', '.join(TYPICAL_DEVICES)}")
    found = DEVICES.get((key or TYPICAL_DEVICES[arch]).lower())
    if found is None:
        raise ValueError(f"no device {key!r}; known: {', '.join(DEVICES)}")
    if found.arch != arch:
        raise ValueError(f"{found.name} is {found.arch}, not {arch}: give its architecture or another device")
    return found


def occupancy(kernel: Kernel, resources: Resources, device: DeviceSpec) -> Occupancy:
    """Blocks of the compiled kernel that one SM of `device` holds, by arithmetic."""
    return blocks_per_sm(
        device,
        kernel.threads,
        resources.registers,
        kernel.shared_bytes,
        static_shared_bytes=resources.static_shared_bytes,
        barriers=resources.barriers,
    )


def describe(kernel: Kernel, arch: str, device: DeviceSpec) -> dict[str, Any]:
    """One row, with the keys `FIELDS`.

    `limiter` is a resource of minfer.arithmetic.occupancy, and "warnings" holds what ptxas warned of. A
    kernel that the architecture cannot run has None for all that compiling would tell, and says why in its
    warnings; one that does not compile says so there too, with limiter "does not compile".
    """
    row: dict[str, Any] = dict.fromkeys(FIELDS)
    row |= {
        "kernel": kernel.name,
        "config": str(kernel.config),
        "arch": arch,
        "dynamic_smem": kernel.shared_bytes,
        "warnings": [],
        "instructions": {},
        "device": device.name,
    }
    if reason := kernel.not_applicable(arch):
        return row | {"warnings": [f"not applicable: it {reason}"], "limiter": "not applicable"}
    try:
        resources = compile_kernel(kernel, arch, strict=False).resources
    except CompileError as error:
        return row | {"warnings": [error.reason], "limiter": "does not compile"}
    warnings = list(resources.warnings)
    if (reason := refusal(kernel, resources)) and reason not in warnings:
        warnings.append(reason)
    fit = occupancy(kernel, resources, device)
    return row | {
        "registers": resources.registers,
        "static_smem": resources.static_shared_bytes,
        "spill_bytes": resources.spill_bytes,
        "stack_bytes": resources.stack_bytes,
        "warnings": warnings + ([fit.refusal] if fit.refusal else []),
        "instructions": resources.instructions,
        "blocks_per_sm": fit.blocks,
        "limiter": fit.limiter,
    }


def is_faulty(row: dict[str, Any]) -> bool:
    """Whether a row is one to fix: does not compile, warns, spills more than allowed. Not: not applicable, or
    too large for the device."""
    return row["limiter"] == "does not compile" or (
        row["limiter"] != "not applicable" and bool(row["warnings"]) and row["blocks_per_sm"] != 0
    )


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The row as text: kernel, config, arch, registers, shared memory, spills, instructions, blocks,
    notes."""
    if row["registers"] is None:
        return (
            row["kernel"],
            row["config"],
            row["arch"],
            "-",
            "-",
            "-",
            "-",
            "-",
            "; ".join(row["warnings"]),
        )
    return (
        row["kernel"],
        row["config"],
        row["arch"],
        str(row["registers"]),
        f"{row['static_smem']:,} + {row['dynamic_smem']:,}",
        str(row["spill_bytes"]),
        _counted(row["instructions"]),
        f"{row['blocks_per_sm']} ({LIMITERS[row['limiter']]})",
        "; ".join(row["warnings"]),
    )


def _counted(instructions: dict[str, int]) -> str:
    """The counts to show of `Resources.instructions`, as `LEGEND` says."""
    classes = {name: n for name, n in instructions.items() if name != "total"}
    shown = [name for name in SHOWN_FIRST if name in classes] or list(classes)[:OTHERS_SHOWN]
    return " ".join(f"{classes[name]} {name}" for name in shown) or f"{instructions['total']} of no class"


SHOWN_FIRST = ("mma", "wgmma", "ldmatrix", "cp.async", "tma.load", "dp4a")
OTHERS_SHOWN = 3
LEGEND = (
    f"instructions: machine instructions of {', '.join(SHOWN_FIRST)};\n"
    f"without them, the {OTHERS_SHOWN} most frequent of the other classes; --json has all. -: not compiled"
)
HEADINGS = (
    "kernel",
    "config",
    "arch",
    "regs",
    "shared B",
    "spill B",
    "instructions",
    "blocks/SM (limit)",
    "notes",
)
