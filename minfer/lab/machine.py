"""Which machine a notebook runs on."""

from __future__ import annotations

import html
import os
import platform
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """A machine as a person would describe it. Memory in bytes; `gpu` is None without a usable GPU.

    `no_gpu` says why there is none.
    """

    cpu: str
    cpus: int
    memory_bytes: int
    memory_free_bytes: int
    gpu: str | None
    no_gpu: str | None
    python: str

    def rows(self) -> list[tuple[str, str]]:
        """(what, value) lines, in reading order."""
        memory = f"{self.memory_bytes / GIB:.1f} GiB, {self.memory_free_bytes / GIB:.1f} GiB free"
        return [
            ("GPU", self.gpu or f"none: {self.no_gpu}"),
            ("CPU", f"{self.cpu}, {self.cpus} cores for this process"),
            ("memory", memory),
            ("Python", self.python),
        ]

    def _repr_html_(self) -> str:
        rows = (
            f'<tr><th>{what}</th><td style="text-align: left">{html.escape(value)}</td></tr>'
            for what, value in self.rows()
        )
        return f"<table>{''.join(rows)}</table>"


def this_machine() -> Machine:
    """The machine that this process runs on; nothing here needs a GPU."""
    from minfer.cuda.kernel import NoDevice
    from minfer.cuda.runtime import device

    gpu = no_gpu = None
    try:
        gpu = str(device())
    except NoDevice as error:
        no_gpu = str(error)
    memory = _memory()
    return Machine(
        cpu=_cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory.get("MemTotal", 0),
        memory_free_bytes=memory.get("MemAvailable", 0),
        gpu=gpu,
        no_gpu=no_gpu,
        python=platform.python_version(),
    )


def _cpu_name(cpuinfo: str | None = None) -> str:
    """The processor's name from Linux's /proc/cpuinfo; its architecture where that has no name (Arm)."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())


def _memory(meminfo: str | None = None) -> dict[str, int]:
    """Bytes of each entry of Linux's /proc/meminfo."""
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    entries = (line.split() for line in text.splitlines())
    return {entry[0].rstrip(":"): int(entry[1]) * 1024 for entry in entries if len(entry) == 3}
