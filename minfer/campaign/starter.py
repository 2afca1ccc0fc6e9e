"""Sums of rows: do the lanes of a warp share a row, or has each thread its own?

`minfer probe new NAME` copies this file for a kernel of your own to begin with: it runs as it is. Four parts
follow one another: the config, the kernel, the workload (what it is given, and what is right), the probe.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import cuda
from numba.cuda import types

from minfer.campaign import Case, Launch, Prediction, Probe, Work, Workload, kernel
from minfer.cuda import ptx
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel

THREADS = 128


@dataclass(frozen=True)
class Config:
    """A variant of the kernel, fixed when it is compiled. It refuses what cannot run, with the number."""

    lanes: int = 1  # of a warp, that share a row

    def __post_init__(self) -> None:
        if self.lanes not in (1, 2, 4, 8, 16, 32):
            raise ConfigRefused(f"row sum: {self.lanes} lanes a row: use 1, 2, 4, 8, 16 or 32")

    def __str__(self) -> str:
        """What tables and legends call the variant, and a profiler the kernel."""
        return {1: "a thread a row", 32: "a warp a row"}.get(self.lanes, f"{self.lanes} lanes a row")


def make_row_sum(config: Config) -> Kernel:
    """out[row] = the sum of x[row, :], f32."""
    lanes = config.lanes

    def row_sum(x, out, rows, columns):
        thread = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        row, lane = thread // lanes, thread % lanes
        total = types.float32(0)
        if row < rows:
            for column in range(lane, columns, lanes):
                total += x[row * columns + column]
        apart = lanes // 2
        while apart:  # every lane of the warp comes here: a shuffle needs them all
            total += ptx.shfl_xor_f32(total, types.uint32(apart))
            apart //= 2
        if lane == 0 and row < rows:
            out[row] = total

    return Kernel(
        name="row_sum",
        config=config,
        function=row_sum,
        threads=THREADS,
        shared_bytes=0,  # dynamic shared memory; arrays of a fixed size are not counted here
        arguments=(
            Argument("x", "in", "float32"),
            Argument("out", "out", "float32"),
            Argument("rows", "scalar", "int32"),
            Argument("columns", "scalar", "int32"),
        ),
    )


@dataclass(frozen=True)
class RowSum(Workload):
    """Inputs, outputs, launches and the reference; the same on a GPU and in the simulator."""

    tolerance: float = 1e-5  # of the largest value: sums in another order

    # measured on a GPU
    cases: ClassVar = (Case.of("2048 x 3584", rows=2048, columns=3584),)
    # checked everywhere, the first one traced: ragged, and small enough to simulate
    small: ClassVar = (
        Case.of("40 x 96", rows=40, columns=96),
        Case.of("33 x 70, ragged", rows=33, columns=70),
    )

    def input_shapes(self, case: Case) -> dict:
        return {"x": ((case["rows"], case["columns"]), "float32")}

    def outputs(self, config: Config, case: Case) -> dict:
        return {"out": ((case["rows"],), "float32")}

    def launches(self, config: Config, case: Case, arrays: Mapping[str, Any], device: Any) -> list[Launch]:
        rows, columns = case["rows"], case["columns"]
        grid = (-(-rows * config.lanes // THREADS), 1, 1)
        made = kernel(make_row_sum, config)
        return [Launch.of(made, grid, arrays["x"], arrays["out"], rows, columns)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"out": inputs["x"].astype(np.float64).sum(axis=1)}

    def work(self, case: Case) -> Work:
        """FLOP of tensor cores, and the bytes that must move: a measured rate above what the GPU can is
        refused."""
        return Work(0.0, 4.0 * case["rows"] * (case["columns"] + 1))


PROBE = Probe(
    name="row-sum",
    title="A warp a row instead of a thread a row",
    hypothesis="Neighbouring lanes then read neighbouring words: fewer sectors for the same bytes.",
    prediction=Prediction(None, "32 -> 4 sectors a request: at most x8, less what L1 saves the baseline."),
    workload=RowSum(),
    baseline=Config(1),
    variant=Config(32),
)
