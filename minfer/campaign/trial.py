"""A probe's configs on one device: what they write, how they compare, which kernels they need."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minfer.campaign.gates import Difference
from minfer.campaign.workload import Case, Launch, Workload, unwritable
from minfer.cuda.kernel import Kernel
from minfer.engine.cuda.devices import DryDevice, GpuDevice

if TYPE_CHECKING:
    from minfer.campaign.decodes import Decodes
    from minfer.campaign.prefills import Prefills
    from minfer.campaign.probe import Probe


PART = 8 << 20
"""Elements that are compared at a time."""


class Trial:
    """Runs both sides of a probe.

    Args:
        device: a `minfer.engine.cuda.devices.Device`: a GPU, or the simulator for the small cases.
        prefills: both routes on a model, where there is one: its prefills, or its decodes.
    """

    def __init__(self, probe: Probe, device: Any, prefills: Prefills | Decodes | None = None) -> None:
        self.probe, self.device, self.prefills = probe, device, prefills
        self.workload = probe.workload
        self.on_gpu = isinstance(device, GpuDevice)
        self._inputs: dict[Case, dict[str, np.ndarray]] = {}

    @property
    def cases(self) -> tuple[Case, ...]:
        """The measured cases on a GPU, else the small ones."""
        return self.workload.cases if self.on_gpu else self.workload.small

    def config(self, config: Any) -> Any:
        """The config as `cases` need it."""
        return config if self.on_gpu else self.workload.shrunk(config)

    def arrays(self, config: Any, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Inputs as the config reads them, copied to the device, and poisoned outputs."""
        read = {**inputs, **self.prepared(config, case, inputs)}
        return self.uploaded(read) | self.poisoned(config, case)

    def prepared(self, config: Any, case: Case, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What is prepared for the config, in place of inputs of the same name.

        Raises:
            TypeError: what is prepared is no dict of arrays. ValueError: it has the name of an output, or was
                written over an input, which the reference and the other side read too.
        """
        prepared = self.workload.prepared(config, case, unwritable(inputs))
        if not isinstance(prepared, Mapping):
            raise TypeError(
                f"{type(self.workload).__name__}.prepared gave {prepared!r}: give a dict of arrays by name"
            )
        for name, value in prepared.items():
            if not isinstance(value, np.ndarray):
                raise TypeError(f"{type(self.workload).__name__}.prepared gave {name} = {value!r}, no array")
        if both := prepared.keys() & self.workload.outputs(config, case).keys():
            raise ValueError(
                f"{type(self.workload).__name__}.prepared gave {', '.join(sorted(both))}, an output: outputs "
                "begin poisoned, so name it otherwise"
            )
        return prepared

    def uploaded(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Copies on the device."""
        arrays = {}
        for name, value in inputs.items():
            arrays[name] = self.device.empty(value.shape, value.dtype)
            self.device.write(arrays[name], np.ascontiguousarray(value))
        return arrays

    def poisoned(self, config: Any, case: Case) -> dict[str, Any]:
        """Fresh outputs, every byte 0xff: NaN as f16 and f32."""
        arrays = {}
        for name, (shape, dtype) in self.workload.outputs(config, case).items():
            arrays[name] = self.device.empty(shape, np.dtype(dtype))
            if self.on_gpu:
                arrays[name].fill_bytes(0xFF, self.device.stream)
        return arrays

    def launches(self, config: Any, case: Case, arrays: Mapping[str, Any]) -> list[Launch]:
        """What runs. Raises TypeError where the workload gives no list of launches."""
        made = self.workload.launches(config, case, arrays, self.device)
        if not isinstance(made, list | tuple) or not all(isinstance(launch, Launch) for launch in made):
            raise TypeError(f"{type(self.workload).__name__}.launches gave {made!r}: give a list of Launch")
        return list(made)

    def outputs(
        self, config: Any, case: Case, inputs: Mapping[str, np.ndarray], checked: bool = False
    ) -> dict[str, np.ndarray] | None:
        """Run once; every output as numbers, None where the config launches nothing. checked: on a GPU, in
        the runtime's checked mode."""
        arrays = self.arrays(config, case, inputs)
        launches = self.launches(config, case, arrays)
        if not launches:
            return None
        self.run(launches, checked)
        names = self.workload.outputs(config, case)
        return {name: self.workload.decoded(name, self.device.read(arrays[name])) for name in names}

    def run(self, launches: list[Launch], checked: bool = False) -> None:
        """Enqueue launches."""
        mode = contextlib.nullcontext()
        if checked and self.on_gpu:
            from minfer.cuda import runtime

            mode = runtime.checked()
        with mode:
            for launch in launches:
                self.device.launch(launch.kernel, launch.grid, *launch.args, pdl=launch.pdl)

    def inputs(self, case: Case) -> dict[str, np.ndarray]:
        """The inputs of a measured case, the same for every side, gate and timing."""
        if case not in self._inputs:
            self._inputs[case] = self.workload.inputs(case, np.random.default_rng(1))
        return self._inputs[case]

    def difference(self, case: Case) -> Difference:
        """The full outputs of both sides on the same inputs."""
        inputs = self.inputs(case)
        shared, sides = self.uploaded(inputs), []
        for _, config in self.probe.sides:
            config = self.config(config)
            own = self.uploaded(self.prepared(config, case, inputs))
            arrays = shared | own | self.poisoned(config, case)
            self.run(self.launches(config, case, arrays))
            sides.append({name: self.device.read(arrays[name]) for name in self.workload.compared})
        worst, elements = 0.0, 0
        for name, a in sides[0].items():
            b = sides[1][name]
            error, count = compare(a, b, lambda part, name=name: self.workload.decoded(name, part))
            worst, elements = max(worst, error), elements + count
        return Difference(worst, elements)


def compare(a: np.ndarray, b: np.ndarray, decoded: Callable[[np.ndarray], np.ndarray]) -> tuple[float, int]:
    """(largest difference over the largest value, elements) of two outputs, a part at a time; infinite where
    one holds no finite number."""
    if a.shape != b.shape:
        return float("inf"), a.size
    same = np.array_equal(_bytes(a), _bytes(b))
    worst, scale, count = 0.0, 0.0, 0
    rows = max(1, PART * len(a) // a.size)
    for start in range(0, len(a), rows):
        x = decoded(a[start : start + rows])
        largest = float(max(x.max(), -x.min()))
        apart = 0.0 if same else float(abs(x - decoded(b[start : start + rows])).max())
        if not (math.isfinite(largest) and math.isfinite(apart)):
            return float("inf"), a.size
        worst, scale, count = max(worst, apart), max(scale, largest), count + x.size
    return worst / (scale or 1.0), count


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def kernels_of(probe: Probe, arch: str = "sm_90a", sms: int = 132) -> list[Kernel]:
    """The kernels that a probe launches, small cases included, each once; nothing runs. What cannot be built
    is left to the gates."""
    if probe.workload is None:
        return []
    found: list[Kernel] = []
    trial = Trial(probe, DryDevice(arch, sms))
    for _, config in probe.sides:
        for made, cases in (
            (config, probe.workload.cases),
            (probe.workload.shrunk(config), probe.workload.small),
        ):
            found += _kernels(trial, made, cases)
    return list(dict.fromkeys(found))


def side_kernels(trial: Trial, config: Any) -> list[Kernel]:
    """The kernels of one config on the measured cases."""
    arch, sms = trial.device.arch, trial.device.sms
    return list(
        dict.fromkeys(_kernels(Trial(trial.probe, DryDevice(arch, sms)), config, trial.workload.cases))
    )


def _kernels(trial: Trial, config: Any, cases: Sequence[Case]) -> list[Kernel]:
    return [
        launch.kernel
        for case in cases
        for launch in trial.launches(config, case, _Nothing(trial, config, case))
    ]


class _Nothing(dict):
    """Arrays without memory, made when asked for: inputs are not computed only to learn their shapes."""

    def __init__(self, trial: Trial, config: Any, case: Case) -> None:
        super().__init__()
        self._trial, self._config, self._case = trial, config, case
        self._shapes = trial.workload.outputs(config, case) | trial.workload.input_shapes(case)

    def __missing__(self, name: str) -> Any:
        if name not in self._shapes:
            workload, case = self._trial.workload, self._case
            prepared = workload.prepared(self._config, case, _WhenAsked(workload, case))
            self._shapes = {key: (a.shape, str(a.dtype)) for key, a in prepared.items()} | self._shapes
        shape, dtype = self._shapes[name]
        return self._trial.device.empty(shape, np.dtype(dtype))


class _WhenAsked(dict):
    """Inputs that are computed when one of them is read."""

    def __init__(self, workload: Workload, case: Case) -> None:
        super().__init__()
        self._made = lambda: workload.inputs(case, np.random.default_rng(0))

    def __missing__(self, name: str) -> np.ndarray:
        self.update(self._made())
        return dict(self)[name]
