"""The rewriting of finished PTX that numba has no words for: tensor maps by value, clusters, minimum blocks
per multiprocessor, the `.version` line."""

from __future__ import annotations

import re

from minfer.cuda.kernel import Kernel


def finalize_ptx(ptx: str, kernel: Kernel, version: str = "8.8") -> str:
    """Finish numba's PTX for `kernel`; needed before assembling any kernel.

    - A "tensor_map" argument is declared as a pointer; it becomes a 128-byte parameter passed by value
      (`__grid_constant__`), whose address the kernel uses (PTX ISA 5.5.8 "Tensor-map", 9.7.9.20 "cvta").
    - `kernel.cluster` > 1: `.explicitcluster` and `.reqnctapercluster`, so that a plain launch starts
      clusters (11.7).
    - `kernel.min_blocks`: `.minnctapersm`, without which the assembler ignores `setmaxnreg` (C7508).
    - `.version` is lowered to `version` where numba wrote a newer one, so that older assemblers read it; 8.8
      knows every target and instruction that is used here.

    Raises ValueError if the PTX does not have the shape that the rewriting relies on."""
    entries = re.findall(r"\.entry\s+(\w+)", ptx)
    if len(entries) != 1:
        raise ValueError(f"{kernel.name}: expected one kernel in the PTX, found {len(entries)}")
    for index, argument in enumerate(kernel.passed):
        if argument.kind == "tensor_map":
            ptx = _by_value(ptx, f"{entries[0]}_param_{index}", kernel.name)
    directives = ""
    if kernel.min_blocks and ".minnctapersm" not in ptx:
        directives += f".minnctapersm {kernel.min_blocks}\n"
    if kernel.cluster > 1:
        directives += f".explicitcluster\n.reqnctapercluster {kernel.cluster}, 1, 1\n"
    if directives:
        ptx, count = re.subn(r"(\.maxntid[^\n]*\n)", lambda match: match[1] + directives, ptx, count=1)
        if count != 1:
            raise ValueError(f"{kernel.name}: no .maxntid line: compile with launch_bounds")
    return re.sub(r"\.version (\d+)\.(\d+)", lambda match: _older(match, version), ptx, count=1)


def _by_value(ptx: str, parameter: str, name: str) -> str:
    """Turn the 64-bit pointer parameter into a by-value tensor map, and its loads into taking its address."""
    declared = rf"\.param \.u64( \.ptr[^,\n]*?)? {parameter}\b"
    ptx, count = re.subn(declared, f".param .align 64 .b8 {parameter}[128]", ptx)
    if count != 1:
        raise ValueError(f"{name}: tensor map parameter {parameter} is not declared as a pointer")
    loads = rf"ld\.param\.[ub]64\s+(%\w+), \[{parameter}\];"
    return re.sub(loads, rf"mov.b64 \1, {parameter};\n\tcvta.param.u64 \1, \1;", ptx)


def _older(match: re.Match, version: str) -> str:
    written = (int(match[1]), int(match[2]))
    wanted = tuple(int(part) for part in version.split("."))
    return f".version {version}" if written > wanted else match[0]
