"""What a kernel factory returns, and the errors of everything that builds, loads and launches kernels.

Light on purpose: no NumPy, no numba. A `Kernel` is a description. `minfer.cuda.runtime` compiles and launches
it, `minfer.cuda.simulator` runs the same function in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from operator import index
from typing import Any, SupportsIndex

from minfer.cuda.signature import signature_of

ARGUMENT_KINDS = ("in", "out", "inout", "scalar", "tensor_map")
ARGUMENT_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)

# What no device that this project supports exceeds (CUDA C++ Programming Guide, technical specifications).
MAX_SHARED_BYTES = 227 * 1024
MAX_SM_THREADS = 2048
MAX_SM_BLOCKS = 32
MAX_THREAD_REGISTERS = 255


class ConfigRefused(ValueError):
    """A kernel config that cannot run, refused when it is built.

    The message names the limit, the number that was asked for and a remedy.
    """


class LaunchRefused(RuntimeError):
    """A launch (or a load) that the device cannot honour.

    Attributes:
        kernel: the kernel's name.
        config: its config (the object itself).
        asked, allowed: the quantity that was asked for and what the device allows, in the resource's unit.
        device: the device's name.
        resource: what ran out, with its unit ("dynamic shared memory bytes", "threads a block", ...).
        remedy: what to change.
    """

    def __init__(
        self,
        kernel: str,
        config: Any,
        asked: Any,
        allowed: Any,
        device: str,
        resource: str,
        remedy: str = "",
    ) -> None:
        self.kernel, self.config, self.asked, self.allowed = kernel, config, asked, allowed
        self.device, self.resource, self.remedy = device, resource, remedy
        message = f"{kernel} [{config}] refused on {device}: asks for {asked} {resource}, allowed {allowed}"
        super().__init__(f"{message}: {remedy}" if remedy else message)


class NoDevice(RuntimeError):
    """No usable GPU: none present, no driver, a driver too old, or a GPU below compute capability 8.0.

    The message is one sentence with its remedy. Everything that needs no GPU keeps working.
    """


class ToolchainError(RuntimeError):
    """A tool of the CUDA toolchain (ptxas, nvdisasm, NVVM) is missing or unfit; says what to install."""


class CompileError(RuntimeError):
    """A kernel did not compile, or compiled to code that its description forbids (spills, serialised wgmma).

    Attributes:
        kernel, config, arch: what was compiled, for which architecture.
        log: the tool's whole output, where there is one.
    """

    def __init__(self, kernel: str, config: Any, arch: str, reason: str, log: str = "") -> None:
        self.kernel, self.config, self.arch, self.reason, self.log = kernel, config, arch, reason, log
        super().__init__(f"{kernel} [{config}] for {arch}: {reason}")


def grid_shape(grid: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, int, int]:
    """(x, y, z) of a launch's grid: blocks along x alone, or up to three counts; what is left out is 1.

    Raises:
        TypeError: no whole numbers. ValueError: none, or more than three.
    """
    try:
        sizes = tuple(map(index, grid))
    except TypeError:
        try:
            sizes = (index(grid),)
        except TypeError:
            raise TypeError(f"a grid is one to three whole numbers of blocks, not {grid!r}") from None
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid is one to three whole numbers of blocks, not {grid!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel, in the order of the kernel function.

    Attributes:
        name: the parameter's name, as messages say it.
        kind: "in" (read), "out" (every element written, none read: checked mode poisons it and proves that it
            was written), "inout" (read, or written in part, such as a KV cache), "scalar" or "tensor_map" (a
            CUtensorMap by value).
        dtype: the element type for arrays, the type for scalars, as a NumPy name or "bfloat16"; None for any.
        stored: a tensor map through which a whole output is stored: checked like "out".
        align: bytes that an array's address must be a multiple of, a power of two: launches check it.
        finite: an input in which a NaN or an infinity would vanish in a rounding to integers: checked mode
            refuses them.
        cleared: elements at an array's beginning that are zero between launches: checked mode and the
            simulator refuse others.
        per_block: an array of one element for each block of the grid, behind the cleared ones: launches check
            its size.
        present: False for an optional parameter that this config does without: the function has it, launches
            do not pass it, and it costs nothing. In the function it is a constant: None for an array (its
            `ptx.global_address` is 0), zero for a scalar.
    """

    name: str
    kind: str
    dtype: str | None = None
    stored: bool = False
    finite: bool = False
    align: int = 1
    cleared: int = 0
    per_block: bool = False
    present: bool = True

    def __post_init__(self) -> None:
        if self.align < 1 or self.align & (self.align - 1):
            raise ValueError(f"argument {self.name!r}: alignment {self.align} is no power of two")
        if self.kind not in ARGUMENT_KINDS:
            raise ValueError(
                f"argument {self.name!r}: kind {self.kind!r} is none of {', '.join(ARGUMENT_KINDS)}"
            )
        if self.dtype is not None and self.dtype not in ARGUMENT_DTYPES:
            raise ValueError(
                f"argument {self.name!r}: dtype {self.dtype!r} is none of {', '.join(ARGUMENT_DTYPES)}"
            )

    def check_size(self, kernel: Kernel, size: int, blocks: int) -> None:
        """Refuse (ValueError) an array of another size than a grid of so many blocks takes."""
        if self.per_block and size != self.cleared + blocks:
            raise ValueError(
                f"{kernel}: argument {self.name!r} has {size} elements, a grid of {blocks} blocks takes "
                f"{self.cleared} + {blocks}: make one for this grid"
            )

    def check_cleared(self, kernel: Kernel, first: Any) -> None:
        """Refuse (ValueError) an array whose `cleared` first elements, a NumPy array, are not zero."""
        if first.any():
            raise ValueError(
                f"{kernel}: {int((first != 0).sum())} of the first {self.cleared} elements of argument "
                f"{self.name!r} are not zero: launches that overlap share it, or one did not end"
            )


@dataclass(frozen=True, eq=False)
class Kernel:
    """One compile-time specialisation of a kernel: what a factory makes of a config. Compared by identity.

    Attributes:
        name: the family's name ("gemm_f16").
        config: the frozen config dataclass; `str(config)` is short.
        function: the plain Python kernel function (not `cuda.jit`ed).
        threads: threads a block (one-dimensional blocks).
        shared_bytes: dynamic shared memory a block, bytes.
        arguments: one `Argument` a parameter of the function, optional ones that are absent included.
        min_arch: least architecture (80, 90, ...).
        arch_specific: True when it uses what only `min_arch`'s "a" variant has (sm_90a: wgmma,
            setmaxnreg).
        min_blocks: launch bounds' least number of blocks an SM, or None.
        max_registers: cap on registers a thread, or None.
        cooperative: blocks wait for each other: the whole grid is resident at once.
        cluster: blocks a cluster along x (1: no clusters); grids must be multiples of it.
        fastmath: approximate division and square root, denormals flushed, multiply-adds fused.
        allowed_spill_bytes: spill bytes (stores plus loads) that are accepted.
        signature: zero-argument callable that returns the numba signature `types.void(...)`; None: that of
            the arguments, each of which has a dtype then.
    """

    name: str
    config: Any
    function: Callable[..., None]
    threads: int
    shared_bytes: int
    arguments: tuple[Argument, ...]
    min_arch: int = 80
    arch_specific: bool = False
    min_blocks: int | None = None
    max_registers: int | None = None
    cluster: int = 1
    cooperative: bool = False
    fastmath: bool = True
    allowed_spill_bytes: int = 0
    signature: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        if self.signature is None:
            for argument in self.arguments:
                if argument.dtype is None and argument.kind != "tensor_map":
                    raise ConfigRefused(f"{self}: argument {argument.name!r} has no dtype: give it one")
            object.__setattr__(self, "signature", signature_of(self.arguments))
        for name in ("threads", "shared_bytes", "cluster", "min_arch"):
            if not isinstance(getattr(self, name), Integral):
                raise ConfigRefused(f"{self}: {name} = {getattr(self, name)!r} is no whole number")
        if not 1 <= self.threads <= 1024:
            raise ConfigRefused(
                f"{self}: {self.threads} threads a block; CUDA allows 1 to 1024: use fewer warps"
            )
        if self.shared_bytes < 0:
            raise ConfigRefused(f"{self}: {self.shared_bytes} bytes of shared memory is negative")
        most_blocks = min(MAX_SM_BLOCKS, MAX_SM_THREADS // self.threads)
        if self.min_blocks is not None and not 1 <= self.min_blocks <= most_blocks:
            raise ConfigRefused(
                f"{self}: at least {self.min_blocks} blocks of {self.threads} threads an SM; an SM holds "
                f"1 to {most_blocks} of them: ask for fewer"
            )
        if self.max_registers is not None and not 1 <= self.max_registers <= MAX_THREAD_REGISTERS:
            raise ConfigRefused(
                f"{self}: max_registers {self.max_registers}; a thread has 1 to {MAX_THREAD_REGISTERS}"
            )
        if not 1 <= self.cluster <= 16:
            raise ConfigRefused(f"{self}: clusters of {self.cluster} blocks; CUDA allows 1 to 16")
        if self.cluster > 1 and self.min_arch < 90:
            raise ConfigRefused(
                f"{self}: clusters need sm_90, but min_arch is sm_{self.min_arch}: set min_arch=90"
            )

    def __str__(self) -> str:
        return f"{self.name} [{self.config}]"

    @cached_property
    def passed(self) -> tuple[Argument, ...]:
        """The arguments that a launch passes, in order: those that are present."""
        return tuple(argument for argument in self.arguments if argument.present)

    def not_applicable(self, arch: str) -> str | None:
        """Why this kernel cannot be compiled for `arch` ("sm_90a"), or None where it can."""
        number = int(arch.removeprefix("sm_").rstrip("af"))
        if self.arch_specific and arch != f"sm_{self.min_arch}a":
            return (
                f"uses what only sm_{self.min_arch}a has (wgmma, setmaxnreg, its shared memory and registers)"
            )
        if number < self.min_arch:
            return f"needs sm_{self.min_arch} or newer"
        return None
