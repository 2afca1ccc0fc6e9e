"""Compiles small functions without a GPU: numba to PTX, ptxas to SASS."""

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from minfer.cuda.instruction import finalize_ptx
from minfer.cuda.kernel import Kernel


def _tool(name: str) -> str:
    packaged = Path(sys.prefix) / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    packaged = packaged / f"site-packages/nvidia/cu13/bin/{name}"
    return str(packaged) if packaged.exists() else shutil.which(name)


@dataclass
class Compiled:
    ptx: str
    log: str
    sass: str

    @property
    def spills(self) -> int:
        return sum(int(n) for n in re.findall(r"(\d+) bytes spill", self.log))

    @property
    def stack(self) -> int:
        return sum(int(n) for n in re.findall(r"(\d+) bytes stack", self.log))

    @property
    def registers(self) -> int:
        return int(re.search(r"Used (\d+) registers", self.log)[1])

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log.splitlines() if re.search(r"Potential|warning|C75\d\d", line)]


def compile_offline(kernel: Kernel, arch: str = "sm_80", sass: bool = True) -> Compiled:
    """Compile and assemble a kernel for `arch`; raises AssertionError with the assembler's words."""
    import numba.cuda.dispatcher
    from numba import cuda

    number = int(re.sub(r"\D", "", arch))
    capability = (number // 10, number % 10, *(["a"] if arch.endswith("a") else []))

    class Device:
        compute_capability = capability[:2]

    bounds = kernel.threads if kernel.min_blocks is None else (kernel.threads, kernel.min_blocks)
    with mock.patch.object(numba.cuda.dispatcher, "get_current_device", lambda: Device):
        ptx, _ = cuda.compile(
            kernel.function,
            kernel.signature(),
            device=False,
            abi="numba",
            cc=capability,
            fastmath=kernel.fastmath,
            launch_bounds=bounds,
        )
    ptx = finalize_ptx(ptx, kernel)
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [_tool("ptxas"), "-v", f"-arch={arch}", str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{ptx}"
        text = ""
        if sass:
            text = subprocess.run(
                [_tool("nvdisasm"), "-c", str(cubin)], capture_output=True, text=True, check=True
            ).stdout
    return Compiled(ptx, done.stderr, text)
