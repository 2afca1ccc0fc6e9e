"""What an assembled kernel uses: registers, memory, spills, warnings, machine instructions by class."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from minfer.cuda.kernel import ToolchainError
from minfer.cuda.runtime.toolchain import nvdisasm

# SASS opcode -> the PTX instruction that people know it by. HGMMA and IGMMA are Hopper's wgmma, LDSM is
# ldmatrix, LDGSTS is cp.async (CUDA binary utilities, "Instruction Set Reference").
SASS_CLASSES = {
    "HMMA": "mma",
    "IMMA": "mma",
    "HGMMA": "wgmma",
    "IGMMA": "wgmma",
    "LDSM": "ldmatrix",
    "STSM": "stmatrix",
    "LDGSTS": "cp.async",
    "UTMALDG": "tma.load",
    "UTMASTG": "tma.store",
    "UBLKCP": "cp.async.bulk",
    "LDG": "ld.global",
    "STG": "st.global",
    "LDS": "ld.shared",
    "STS": "st.shared",
    "LDL": "ld.local",
    "STL": "st.local",
    "BAR": "bar.sync",
    "SYNCS": "mbarrier",
    "IDP": "dp4a",
    "SHFL": "shfl",
    "MUFU": "mufu",
}

# The assembler says it gave up on asynchronous tensor cores or on setmaxnreg: C7504, C7508-C7520.
_PERFORMANCE_LOSS = re.compile(r"Potential Performance Loss|\(C75\d\d\)")
_SASS_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)


@dataclass(frozen=True)
class Resources:
    """What one kernel uses, as ptxas says it. Bytes are a block's for shared memory, a thread's for the rest;
    `barriers` are named barriers (`bar.sync` ids).

    `instructions` counts the machine instructions by class ("mma", "wgmma", "ldmatrix", "cp.async", ...,
    "total"); it runs nvdisasm on first use.
    """

    registers: int
    static_shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    barriers: int = 0
    warnings: tuple[str, ...] = ()
    count: Callable[[], dict[str, int]] = field(default=dict, repr=False, compare=False)

    @property
    def spill_bytes(self) -> int:
        """Spill stores plus spill loads."""
        return self.spill_store_bytes + self.spill_load_bytes

    @property
    def performance_warnings(self) -> tuple[str, ...]:
        """The warnings that say that the assembler serialised wgmma or ignored setmaxnreg."""
        return tuple(w for w in self.warnings if _PERFORMANCE_LOSS.search(w))

    @cached_property
    def instructions(self) -> dict[str, int]:
        """Machine instructions by class. Raises ToolchainError without nvdisasm."""
        return self.count()


def parse_ptxas(log: str, entry: str) -> Resources:
    """Resources of `entry` from the output of `ptxas -v`.

    Raises:
        ToolchainError: the output is not of the known form (another ptxas than CUDA 13's).
    """
    properties = re.search(
        rf"Function properties for {re.escape(entry)}\s*\n\s*(\d+) bytes stack frame, "
        r"(\d+) bytes spill stores, (\d+) bytes spill loads",
        log,
    )
    used = re.search(r"Used (\d+) registers", log)
    if properties is None or used is None:
        raise ToolchainError(f"ptxas -v said nothing known about {entry}; it said: {log.strip()[:500]}")
    line = log[used.start() : log.find("\n", used.start())]
    shared = re.search(r"(\d+) bytes smem", line)
    barriers = re.search(r"used (\d+) barriers", line)
    warnings = dict.fromkeys(
        text.split("ptxas", 1)[-1].strip()
        for text in log.splitlines()
        if _PERFORMANCE_LOSS.search(text) or re.search(r"\bwarning\b", text)
    )
    return Resources(
        registers=int(used[1]),
        static_shared_bytes=int(shared[1]) if shared else 0,
        spill_store_bytes=int(properties[2]),
        spill_load_bytes=int(properties[3]),
        stack_bytes=int(properties[1]),
        barriers=int(barriers[1]) if barriers else 0,
        warnings=tuple(warnings),
    )


def disassemble(cubin: bytes, lines: bool = False) -> str:
    """The machine code (SASS) of a cubin as text, with `lines` under comments that name the source lines (of
    a cubin that was compiled with them). Raises ToolchainError."""
    tool = nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(tool.path), "-c", *(["-g"] if lines else []), str(path)]
        reply = subprocess.run(command, capture_output=True, text=True)
    if reply.returncode:
        raise ToolchainError(f"{tool.path} (release {tool.version}) failed: {reply.stderr.strip()[:500]}")
    return reply.stdout


def count_instructions(sass: str) -> dict[str, int]:
    """Machine instructions by class, largest first, "total" last; NOPs (padding) are not counted."""
    opcodes = Counter(match for match in _SASS_LINE.findall(sass) if match != "NOP")
    classes: Counter[str] = Counter()
    for opcode, n in opcodes.items():
        if opcode in SASS_CLASSES:
            classes[SASS_CLASSES[opcode]] += n
    return {**dict(classes.most_common()), "total": sum(opcodes.values())}
