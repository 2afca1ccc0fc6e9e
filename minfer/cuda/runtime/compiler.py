"""Kernel -> PTX (numba, NVVM) -> cubin (ptxas), without a GPU, kept on disk.

The PTX is assembled whole: numba's own way goes through nvJitLink as relocatable code, where the assembler
ignores setmaxnreg and serialises wgmma.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from minfer.cuda.instruction import finalize_ptx
from minfer.cuda.kernel import CompileError, ConfigRefused, Kernel, ToolchainError
from minfer.cuda.runtime import cache
from minfer.cuda.runtime.resources import Resources, count_instructions, disassemble, parse_ptxas
from minfer.cuda.runtime.toolchain import ptxas

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a", "sm_121a")

_numba_lock = threading.RLock()


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel assembled for one architecture.

    Attributes:
        kernel, arch: what was compiled, for what.
        ptx: the text that was assembled; cubin: the machine code; entry: the kernel's symbol in it.
        resources: what ptxas says that it uses.
        from_cache: read from the disk instead of compiled.
    """

    kernel: Kernel
    arch: str
    ptx: str
    cubin: bytes
    entry: str
    resources: Resources
    from_cache: bool = False

    @cached_property
    def sass(self) -> str:
        """The machine code as text. Raises ToolchainError without nvdisasm."""
        return disassemble(self.cubin)


def parse_arch(arch: str) -> tuple[int, int] | tuple[int, int, str]:
    """numba's compute capability for an architecture: (8, 9) for "sm_89", (9, 0, "a") for "sm_90a".

    Raises:
        ValueError: not of that form.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
    if match is None or (int(match[1]), int(match[2])) < (8, 0):
        raise ValueError(
            f"{arch!r} is no architecture of compute capability 8.0 or newer: {', '.join(ARCHITECTURES)}"
        )
    capability = (int(match[1]), int(match[2]))
    return (*capability, "a") if match[3] else capability


@contextlib.contextmanager
def _device_stand_in(capability: tuple[int, int]) -> Iterator[None]:
    """numba asks for the current device while it compiles device functions; only its capability is used."""
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = original


def kernel_ptx(kernel: Kernel, arch: str, lineinfo: bool = False) -> tuple[str, str]:
    """(PTX ready to assemble, the kernel's symbol in it).

    Raises:
        CompileError: numba or NVVM refuses the kernel; its message is in the log.
        ToolchainError: numba runs as a simulator in this process, or NVVM is missing.
    """
    import numba

    if numba.config.ENABLE_CUDASIM:
        raise ToolchainError(
            "NUMBA_ENABLE_CUDASIM is set, so numba cannot compile in this process: unset it; "
            "minfer.cuda.simulator runs kernels without it"
        )
    from cuda.bindings.nvvm import nvvmError
    from numba import cuda
    from numba.core.errors import NumbaError
    from numba.cuda.cudadrv.error import NvvmError
    from numba.cuda.errors import UnsupportedBytecodeError

    from minfer.cuda.runtime.refused_line import refused_line

    capability = parse_arch(arch)
    bounds = kernel.threads if kernel.min_blocks is None else (kernel.threads, kernel.min_blocks)
    # The stand-in is a patch of numba's module: one compilation at a time.
    with _numba_lock, _device_stand_in(capability[:2]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="numba")
        try:
            ptx, _ = cuda.compile(
                kernel.function,
                kernel.signature(),
                device=False,
                abi="numba",
                cc=capability,
                fastmath=kernel.fastmath,
                launch_bounds=bounds,
                lineinfo=lineinfo,
            )
        except (NumbaError, UnsupportedBytecodeError, NvvmError, nvvmError) as error:
            reason = str(error).strip()
            told = f"{refused_line(kernel, error)}: numba or NVVM: {reason[:2000]}"
            raise CompileError(kernel.name, kernel.config, arch, told, reason) from error
        except OSError as error:  # numba-cuda raises it where libNVVM cannot be opened
            raise ToolchainError(
                f"numba cannot load NVVM ({error}): pip install 'numba-cuda[cu13]'"
            ) from error
    return _named(_capped(finalize_ptx(ptx, kernel), kernel), kernel)


def _capped(ptx: str, kernel: Kernel) -> str:
    """With the directive for `max_registers`: ptxas ignores its own option where launch bounds are given."""
    if kernel.max_registers is None:
        return ptx
    if kernel.min_blocks is not None:
        raise ConfigRefused(f"{kernel}: max_registers and min_blocks both bound the registers: give one")
    return re.sub(r"(\.maxntid[^\n]*\n)", rf"\g<1>.maxnreg {kernel.max_registers}\n", ptx, count=1)


def _named(ptx: str, kernel: Kernel) -> tuple[str, str]:
    """Give the entry the kernel's name and config instead of numba's mangled one: profilers show it."""
    mangled = re.search(r"\.entry\s+(\w+)", ptx)[1]
    entry = re.sub(r"\W+", "_", f"{kernel.name}__{kernel.config}").strip("_")[:200]
    return re.sub(rf"\b{mangled}(?=\b|_param_)", entry, ptx), entry


def assemble(kernel: Kernel, arch: str, ptx: str, lineinfo: bool = False) -> tuple[bytes, str]:
    """(cubin, what ptxas printed) of a whole program.

    Raises:
        CompileError: ptxas refuses the PTX.
        ToolchainError: there is no ptxas, or it does not know the architecture.
    """
    tool = ptxas()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        options = ["-v", f"-arch={arch}", *(["-lineinfo"] if lineinfo else [])]
        command = [str(tool.path), *options, str(source), "-o", str(target)]
        reply = subprocess.run(command, capture_output=True, text=True)
        log = reply.stdout + reply.stderr
        if reply.returncode:
            if "is not defined for option 'gpu-name'" in log:
                raise ToolchainError(f"{tool.path} (release {tool.version}) does not know {arch}: update it")
            reason = f"ptxas {tool.version}: {_first_error(log)}"
            raise CompileError(kernel.name, kernel.config, arch, reason, log)
        return target.read_bytes(), log


def _first_error(log: str) -> str:
    lines = [line for line in log.splitlines() if "error" in line or "fatal" in line]
    return re.sub(r"^ptxas \S*kernel\.ptx, ", "", lines[0])[:500] if lines else log.strip()[:500]


def refusal(kernel: Kernel, resources: Resources) -> str | None:
    """Why code with these resources must not be used for `kernel`, or None."""
    if resources.performance_warnings:
        return resources.performance_warnings[0]
    if resources.spill_bytes > kernel.allowed_spill_bytes:
        return (
            f"spills {resources.spill_store_bytes} bytes of stores and {resources.spill_load_bytes} "
            f"of loads, allowed {kernel.allowed_spill_bytes}: "
            "use smaller tiles, more threads or fewer min_blocks"
        )
    return None


def compile_kernel(
    kernel: Kernel, arch: str = "sm_90a", *, lineinfo: bool = False, strict: bool = True
) -> CompiledKernel:
    """Compile `kernel` for `arch`; needs no GPU. Kept on disk (see `minfer.cuda.runtime.cache`).

    Args:
        lineinfo: keep the map from machine code to Python lines, for profilers.
        strict: refuse spills over `kernel.allowed_spill_bytes` and serialised tensor cores.

    Raises:
        ConfigRefused: the architecture lacks what the kernel uses.
        CompileError: it does not compile, or `strict` refuses what came out.
        ToolchainError: a tool is missing; says what to install.
    """
    parse_arch(arch)
    if reason := kernel.not_applicable(arch):
        raise ConfigRefused(f"{kernel} cannot be compiled for {arch}: it {reason}")
    key = cache.cache_key(kernel, arch, lineinfo)
    compiled = _read(kernel, arch, key) if key else None
    if compiled is None:
        ptx, entry = kernel_ptx(kernel, arch, lineinfo)
        cubin, log = assemble(kernel, arch, ptx, lineinfo)
        compiled = CompiledKernel(kernel, arch, ptx, cubin, entry, parse_ptxas(log, entry))
        if key:
            cache.store(key, _members(compiled))
    if strict and (reason := refusal(kernel, compiled.resources)):
        raise CompileError(kernel.name, kernel.config, arch, reason)
    counter = functools.partial(_count, key, compiled.cubin)
    return replace(compiled, resources=replace(compiled.resources, count=counter))


_NUMBERS = (
    "registers",
    "static_shared_bytes",
    "spill_store_bytes",
    "spill_load_bytes",
    "stack_bytes",
    "barriers",
)


def _members(compiled: CompiledKernel) -> dict[str, bytes]:
    numbers = {name: getattr(compiled.resources, name) for name in _NUMBERS}
    meta = {"entry": compiled.entry, "resources": numbers, "warnings": compiled.resources.warnings}
    return {
        "meta.json": json.dumps(meta).encode(),
        "kernel.ptx": compiled.ptx.encode(),
        "kernel.cubin": compiled.cubin,
    }


def _read(kernel: Kernel, arch: str, key: str) -> CompiledKernel | None:
    members = cache.load(key)
    if members is None:
        return None
    try:
        meta = json.loads(members["meta.json"])
        resources = Resources(**meta["resources"], warnings=tuple(meta["warnings"]))
        text, cubin = members["kernel.ptx"].decode(), members["kernel.cubin"]
        return CompiledKernel(kernel, arch, text, cubin, meta["entry"], resources, from_cache=True)
    except (KeyError, TypeError, ValueError):  # a file of another shape under our key: build again over it
        return None


def _count(key: str | None, cubin: bytes) -> dict[str, int]:
    """Machine instructions by class, kept beside the compiled kernel."""
    if key and (kept := cache.load(f"{key}-sass")):
        with contextlib.suppress(KeyError, ValueError):
            return json.loads(kept["instructions.json"])
    counts = count_instructions(disassemble(cubin))
    if key:
        cache.store(f"{key}-sass", {"instructions.json": json.dumps(counts).encode()})
    return counts
