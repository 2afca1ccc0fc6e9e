"""What a probe runs: cases with inputs, the launches that a config makes of them, and a reference.

A workload knows nothing of timing. The same launches run on the GPU, in the simulator (small cases, for the
parity gate without a GPU) and on a device that only notes which kernels they need.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from minfer.cuda.kernel import Kernel
from minfer.engine.cuda.launches import kernel

__all__ = ["Case", "Launch", "Work", "Workload", "kernel", "pooled_normal"]


@dataclass(frozen=True)
class Case:
    """One shape that is measured or checked.

    Attributes:
        label: as tables show it. count: how often a prefill of the 7B runs it, or a decoded token.
        sizes: (name, size) pairs; `case["nt"]` is one of them.
    """

    label: str
    sizes: tuple[tuple[str, int], ...]
    count: int = 1

    @classmethod
    def of(cls, label: str, count: int = 1, **sizes: int) -> Case:
        """With its sizes as keywords."""
        return cls(label, tuple(sizes.items()), count)

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and arguments; pdl: begun while the kernel before still runs, as the engine
    launches kernels that wait for it themselves (`minfer.cuda.dependent`)."""

    kernel: Kernel
    grid: tuple[int, int, int]
    args: tuple
    pdl: bool = False

    @classmethod
    def of(cls, made: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> Launch:
        """With its arguments in a row."""
        return cls(made, grid, args, pdl)


@dataclass(frozen=True)
class Work:
    """The least that one run must do.

    Attributes:
        flop: operations of the tensor cores. nbytes: read from or written to memory at least once.
        dtype: of the operations, a key of `minfer.arithmetic.devices.DeviceSpec.tensor_peak`.

    Raises:
        ValueError: a number that is not finite, or below 0.
    """

    flop: float
    nbytes: float
    dtype: str = "f16"

    def __post_init__(self) -> None:
        for name, number in (("flop", self.flop), ("nbytes", self.nbytes)):
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"a work's {name} = {number}: must be finite, and not below 0")


class Workload(ABC):
    """The base of workloads. Override the abstract methods; the others have sensible answers.

    Attributes:
        cases: measured on a GPU. small: ragged ones for the parity gate; the simulator runs them too.
        compared: the outputs that matter: the names that `reference` gives.
        tolerance: the largest error against the reference, relative to the reference's largest magnitude.
        phase: of a model, that its routes differ in and that is timed as a whole: "prefill" or "decode".
    """

    cases: ClassVar[tuple[Case, ...]] = ()
    small: ClassVar[tuple[Case, ...]] = ()
    compared: ClassVar[tuple[str, ...]] = ("out",)
    phase: ClassVar[str] = "prefill"
    tolerance: float = 2e-3

    @abstractmethod
    def input_shapes(self, case: Case) -> dict[str, tuple[tuple[int, ...], str]]:
        """(shape, dtype) of the input arrays, by name."""

    def inputs(self, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The input arrays by name: normal numbers, unless overridden."""
        return {
            name: pooled_normal(shape, dtype, int(rng.integers(1 << 20)))
            for name, (shape, dtype) in self.input_shapes(case).items()
        }

    def prepared(self, config: Any, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What a config reads in a form of its own, made of the inputs once and not timed: weights that are
        repacked, a workspace that begins as zeros. It takes the place of the inputs of the same name."""
        return {}

    @abstractmethod
    def outputs(self, config: Any, case: Case) -> dict[str, tuple[tuple[int, ...], str]]:
        """(shape, dtype) of what the launches write, by name."""

    @abstractmethod
    def launches(self, config: Any, case: Case, arrays: Mapping[str, Any], device: Any) -> list[Launch]:
        """What runs, in order. `arrays` has all inputs and outputs, on `device` (an engine's Device)."""

    @abstractmethod
    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the compared outputs must be, by NumPy."""

    def decoded(self, name: str, value: np.ndarray) -> np.ndarray:
        """An output as numbers that can be compared."""
        return value.astype(np.float32)

    def shrunk(self, config: Any) -> Any:
        """The config for the small cases: itself, unless it fixes sizes."""
        return config

    def work(self, case: Case) -> Work | None:
        """The least work of a case; None: not known, and no ceiling is checked."""
        return None

    def route(self, config: Any, arch: str) -> Any:
        """The engine's route (`minfer.engine.cuda.routes.Route`) that uses this config in a whole prefill (or
        decode, by `phase`) on an architecture ("sm_90a"); None: there is none, the wall clock's gain follows
        from the kernels."""
        return None

    @property
    def wall_route(self) -> str:
        """The route whose decomposition these kernels belong to."""
        return "f16"

    def bucket(self) -> str | None:
        """The class of the wall decomposition that these kernels are; None: none."""
        return None


def work_of(workload: Workload, case: Case) -> Work | None:
    """The least work of a case. Raises TypeError where the workload gives something else."""
    work = workload.work(case)
    if work is not None and not isinstance(work, Work):
        raise TypeError(f"{type(workload).__name__}.work gave {work!r}: give a Work, or None")
    return work


def unwritable(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """The same arrays for code that may only read them (what others read, too): writing raises ValueError.
    What holds none yet, and makes them when they are asked for, is given as it is."""
    if not inputs:
        return inputs
    seen = {name: value.view() for name, value in inputs.items()}
    for value in seen.values():
        value.flags.writeable = False
    return seen


@cache
def _pool() -> np.ndarray:
    """Normal numbers to fill large inputs from: a prime number of them, so that rows differ."""
    return np.random.default_rng(7).standard_normal(1_048_573).astype(np.float32)


def pooled_normal(shape: Sequence[int], dtype: str = "float16", shift: int = 0) -> np.ndarray:
    """A large array of normal numbers in little time: one pool over and over, from `shift` on."""
    pool = np.roll(_pool(), -shift).astype(dtype)
    return np.resize(pool, math.prod(shape)).reshape(tuple(shape))
