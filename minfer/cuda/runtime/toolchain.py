"""Where the CUDA tools are: ptxas (assembles kernels) and nvdisasm (reads the machine code back).

Looked for in this order: the `nvidia-cuda-nvcc` and `nvidia-cuda-nvdisasm` wheels, `$CUDA_HOME`/`$CUDA_PATH`,
`$PATH`, /usr/local/cuda. A CUDA 13 tool is needed: older ones do not read the PTX that NVVM 13 writes.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minfer.cuda.kernel import ToolchainError

LEAST_RELEASE = (13, 0)
WHEELS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}


@dataclass(frozen=True)
class Tool:
    """A tool that was found: its path and its CUDA release, (13, 5) for "release 13.5, V13.5.37"."""

    name: str
    path: Path
    release: tuple[int, int]
    version: str

    @property
    def ptx_version(self) -> tuple[int, int]:
        """The newest PTX ISA that this release reads: CUDA 13.x reads PTX 9.x (CUDA release notes)."""
        return (self.release[0] - 4, self.release[1])


def _candidates(name: str) -> Iterator[Path]:
    for folder in sys.path:
        yield Path(folder or ".") / "nvidia" / "cu13" / "bin" / name
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "bin" / name
    if found := shutil.which(name):
        yield Path(found)
    yield Path("/usr/local/cuda/bin") / name


def parse_version(text: str) -> tuple[tuple[int, int], str] | None:
    """((13, 5), "13.5.37") from the output of `ptxas --version`; None where it says no release."""
    match = re.search(r"release (\d+)\.(\d+), V([\d.]+)", text)
    return ((int(match[1]), int(match[2])), match[3]) if match else None


@functools.cache
def find_tool(name: str) -> Tool:
    """The first fitting `ptxas` or `nvdisasm`.

    Raises:
        ToolchainError: none found, or only ones older than CUDA 13.0; says what to install.
    """
    too_old = []
    for path in _candidates(name):
        if not path.is_file() or not os.access(path, os.X_OK):
            continue
        try:
            reply = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        parsed = parse_version(reply.stdout)
        if parsed is None:
            continue
        if parsed[0] >= LEAST_RELEASE:
            return Tool(name, path, *parsed)
        too_old.append(f"{path} is release {parsed[1]}")
    wanted = ".".join(map(str, LEAST_RELEASE))
    seen = f" ({'; '.join(dict.fromkeys(too_old))})" if too_old else ""
    raise ToolchainError(
        f"no {name} of CUDA {wanted} or newer was found{seen}: pip install '{WHEELS[name]}>={wanted}' "
        "or set CUDA_HOME to a CUDA 13 toolkit"
    )


def ptxas() -> Tool:
    """The assembler. Raises ToolchainError."""
    return find_tool("ptxas")


def nvdisasm() -> Tool:
    """The disassembler. Raises ToolchainError."""
    return find_tool("nvdisasm")


def package_version(name: str) -> str:
    """The installed version of a Python distribution, or "absent"."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@functools.cache
def compiler_versions() -> dict[str, str]:
    """Everything that decides what a kernel compiles to, by name; part of the disk cache's key.

    NVVM's own version is not asked for (that would load it): its wheel's version stands for it, and where
    NVVM comes from a CUDA toolkit, that toolkit's path does.
    """
    packages = ("numba-cuda", "numba", "llvmlite", "nvidia-nvvm")
    versions = {name: package_version(name) for name in packages}
    versions["ptxas"] = ptxas().version
    if versions["nvidia-nvvm"] == "absent":
        versions["cuda_home"] = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""
    return versions
