"""Greedy decoding on the device, on the simulator: the host's choices, one token ahead of the caller."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.engine.errors import EngineError, InputError
from minfer.engine.host.runtime import HostBackend
from tests.engine.cuda_models import micro_model
from tests.engine.test_cuda_simulated import IDS, close, open_session, simulated

pytestmark = pytest.mark.slow


def test_the_device_goes_on_by_itself(tmp_path):
    model = micro_model(tmp_path / "micro.gguf", layers=1)
    gpu, host = open_session(model, simulated()), open_session(model, HostBackend(threads=1))
    assert gpu.chooses and not host.chooses
    expected, token = [], int(IDS[2])
    for _ in range(3):
        token = int(host.forward([token]).argmax())
        expected.append(token)
    tokens = gpu.greedy(IDS[2], 3)
    assert [next(tokens), next(tokens)] == expected[:2] and gpu.position == 2
    # Abandoned: the token that was ahead leaves no trace.
    assert list(gpu.greedy(expected[1], 1)) == expected[2:] and gpu.position == 3
    tokens = gpu.greedy(expected[2], 2)
    assert next(tokens) == int(host.forward(expected[2:]).argmax())
    close(gpu.forward(IDS[:3]), host.forward(IDS[:3]))
    assert list(gpu.greedy(0, 0)) == []
    with pytest.raises(InputError, match=f"{gpu.n_ctx} more tokens do not fit"):
        gpu.greedy(0, gpu.n_ctx)
    gpu._runtime.weights.output_norm[:] = np.nan
    with pytest.raises(EngineError, match="logits are not numbers"):
        next(gpu.greedy(0, 1))
