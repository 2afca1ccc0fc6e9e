"""One launch with its expected outputs, run by the simulator or by a GPU.

Outputs start as poison (NaN, or a canary for integers), buffers have exactly the size that the kernel may
touch, and every output is compared whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from minfer.cuda.kernel import Kernel

CANARY = 0xA5


def poisoned(shape: Any, dtype: Any) -> np.ndarray:
    """An output nobody has written: NaN, or bytes of 0xA5."""
    if np.issubdtype(dtype, np.floating):
        return np.full(shape, np.nan, dtype)
    return np.full(np.prod(shape) * np.dtype(dtype).itemsize, CANARY, np.uint8).view(dtype).reshape(shape)


@dataclass
class Case:
    """A launch: arguments in the kernel's order, and what outputs must be.

    `expected` maps an argument's name to an array (compared within `rtol` and `atol`, exactly where both
    are 0) or to a function that asserts on the result. `whole_chunks` names byte inputs that a GPU gets
    rounded up to 16 bytes: the kernel ends them with a cp.async of a smaller source size, which reads no
    further (the simulator checks that), but compute-sanitizer counts the whole chunk. `boxes` maps arguments
    that the kernel takes as tensor maps (128-byte swizzle) to the (rows, columns) of their boxes.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    expected: dict[str, np.ndarray | Callable[[np.ndarray], None]]
    rtol: float = 0.0
    atol: float = 0.0
    name: str = ""
    whole_chunks: tuple[str, ...] = ()
    boxes: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert list(self.arguments) == [a.name for a in self.kernel.passed]

    def __str__(self) -> str:
        return f"{self.kernel} {self.name}"

    def rows(self, first: int, last: int) -> Case:
        """The launch for some of the rows: arguments and outputs of as many rows as the grid are cut, other
        outputs are not looked at."""
        of = self.grid[0]

        def cut(values: dict[str, Any]) -> dict[str, Any]:
            return {k: v[first:last].copy() for k, v in values.items() if np.ndim(v) and len(v) == of}

        arguments = self.arguments | cut(self.arguments)
        return replace(
            self,
            grid=(last - first, *self.grid[1:]),
            arguments=arguments,
            expected=cut(self.expected),
            results={},
        )

    def repeated(self, times: int, grid: tuple[int, int, int], **scalars: int) -> Case:
        """The launch over its rows again and again: arrays with as many rows as the first one are `times` as
        long, and in outputs the later rows have the first ones' bits."""
        rows = len(next(iter(self.arguments.values())))

        def again(array: np.ndarray) -> np.ndarray:
            return np.resize(array, (rows * times, *array.shape[1:]))

        def check(name: str, got: np.ndarray) -> None:
            self._compare(name, got[:rows])
            assert np.array_equal(got.view(np.uint8), again(got[:rows]).view(np.uint8)), f"{self}: {name}"

        arguments = {k: again(v) if np.ndim(v) and len(v) == rows else v for k, v in self.arguments.items()}
        expected = {name: partial(check, name) for name in self.expected}
        return replace(self, grid=grid, arguments=arguments | scalars, expected=expected, results={})

    def check(self) -> None:
        """Compare every expected output with the results of the last run."""
        for name in self.expected:
            self._compare(name, self.results[name])

    def _compare(self, name: str, got: np.ndarray) -> None:
        wanted = self.expected[name]
        if callable(wanted):
            wanted(got)
        elif self.rtol == self.atol == 0:
            np.testing.assert_array_equal(got, wanted, err_msg=f"{self}: {name}")
        else:
            wide = got.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(*wide, self.rtol, self.atol, err_msg=f"{self}: {name}")

    def run_simulated(self, **options: Any) -> None:
        """Run in the simulator on copies of the arguments, and check."""
        from minfer.cuda import simulator

        self.results = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self.arguments.items()}
        passed = [
            simulator.tensor_map(v, *self.boxes[k]) if k in self.boxes else v for k, v in self.results.items()
        ]
        simulator.launch(self.kernel, self.grid, *passed, **options)
        self.check()

    def run_on_gpu(self) -> None:
        """Run twice on the GPU from fresh outputs, check, and check that both runs agree bit by bit."""
        from minfer.cuda import runtime

        first = self._gpu_results(runtime)
        self.results = self._gpu_results(runtime)
        self.check()
        for name in self.expected:
            np.testing.assert_array_equal(
                first[name].view(np.uint8),
                self.results[name].view(np.uint8),
                err_msg=f"{self}: {name} differs",
            )

    def _gpu_results(self, runtime: Any) -> dict[str, np.ndarray]:
        arguments = dict(self.arguments)
        for name in self.whole_chunks:
            whole = arguments[name].ravel()
            arguments[name] = np.concatenate([whole, np.zeros(-whole.size % 16, np.uint8)])
        held = {k: runtime.to_device(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        passed = [runtime.tensor_map(v, *self.boxes[k]) if k in self.boxes else v for k, v in held.items()]
        runtime.launch(self.kernel, self.grid, *passed)
        return {name: held[name].to_host() for name in self.expected}
