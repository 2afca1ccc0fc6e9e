"""The phantom on a GPU: what its driver says to a launch over the cap, and what is in the outputs after."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused, LaunchRefused
from minfer.lab import phantom_view
from minfer.lab.mmq_view import config, toy_operands


def test_nothing_runs_and_nothing_is_reported(measure):
    """Unheeded, both calls fail, the poison stays, and the benchmark refuses; the context is unharmed."""
    tried = phantom_view.on_this_gpu()
    assert tried.asked == tried.allowed + 1024
    assert tried.opt_in == tried.launch == "CUDA_ERROR_INVALID_VALUE"
    assert tried.unwritten == tried.out.size
    measure("phantom: outputs unwritten, %", 100 * tried.unwritten / tried.out.size)
    measure("phantom: bytes over the cap", tried.asked - tried.allowed)
    with pytest.raises(phantom_view.NothingRan, match="no speed is reported"):
        phantom_view.speed(tried, 1e-3)
    assert phantom_view.verdict(tried, 1e-3).startswith("refused")


def test_the_same_kernel_runs_when_it_asks_for_what_it_needs():
    from minfer.cuda.mmq import mmq
    from minfer.cuda.mmq.reference import product

    phantom_view.on_this_gpu()  # a refused launch before it changes nothing
    made, (nt, od) = config("narrow", 4), phantom_view.TOY
    weights, chunks = toy_operands(nt, od)
    out = runtime.empty((nt, od), np.float32)
    with runtime.checked():
        inputs = runtime.to_device(weights), runtime.to_device(chunks)
        runtime.launch(mmq(made), made.grid(nt, od), *inputs, out, nt, od, 256)
    wanted, magnitude = product("Q4_K", weights, chunks)
    assert (np.abs(out.to_host() - wanted) <= 1e-6 * magnitude + 1e-9).all()


def test_heeded_a_config_over_the_cap_is_refused_with_its_numbers():
    """Where the GPU has less than the largest, when it is loaded; else when the config is made."""
    from minfer.cuda.mmq import MmqConfig, mmq

    cap = runtime.device().shared_optin_bytes
    if cap < MAX_SHARED_BYTES:
        made = MmqConfig("raw", "Q4_K", tokens_tile=128, kd=8, stages=4)
        with pytest.raises(LaunchRefused, match=f"asks for {made.shared_bytes} .* allowed {cap}"):
            runtime.load(mmq(made))
    else:
        with pytest.raises(ConfigRefused, match=f"the largest device allows {cap}"):
            MmqConfig("raw", "Q4_K", tokens_tile=256, kd=8, stages=3, warps=16)
