"""Every PTX instruction on random inputs: the device gives what the simulator's semantics give."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime

pytest.importorskip("greenlet")  # the simulator's

from minfer.cuda import simulator
from tests.gpu.instruction_kernels import probes


@pytest.mark.parametrize("probe", probes(), ids=lambda p: str(p.kernel.config))
def test_device_equals_simulator(probe):
    if reason := probe.kernel.not_applicable(runtime.device().arch):
        pytest.skip(f"it {reason}")
    simulated = np.full(probe.out_words, 0xA5A5A5A5, np.uint32)
    simulator.launch(probe.kernel, (1, 1, 1), *(array.copy() for array in probe.inputs), simulated)
    out = runtime.to_device(np.full(probe.out_words, 0xA5A5A5A5, np.uint32))
    runtime.launch(probe.kernel, (1, 1, 1), *(runtime.to_device(array) for array in probe.inputs), out)
    device = out.to_host()
    if probe.rtol == probe.atol == 0:
        same = (device == simulated) | (nan(device) & nan(simulated) & probe_is_float(probe))
        assert same.all(), differences(device, simulated, ~same)
    else:
        got, wanted = device.view(np.float32), simulated.view(np.float32)
        np.testing.assert_allclose(got, wanted, probe.rtol, probe.atol, equal_nan=True)


def nan(words: np.ndarray) -> np.ndarray:
    return np.isnan(words.view(np.float32))


def probe_is_float(probe) -> bool:
    """A NaN's payload is the hardware's own affair."""
    return "f32" in str(probe.kernel.config)


def differences(device: np.ndarray, simulated: np.ndarray, where: np.ndarray) -> str:
    at = np.flatnonzero(where)
    lines = [f"{at.size} of {device.size} words differ; thread, word, device, simulator:"]
    lines += [f"{i % 128} {i // 128} {device[i]:#010x} {simulated[i]:#010x}" for i in at[:8]]
    return "\n".join(lines)
