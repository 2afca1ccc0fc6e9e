"""The multiprocessors' own counters, read around some work."""

from __future__ import annotations

import numpy as np

from minfer.cuda import runtime
from minfer.cuda.clock import SLOTS, mean_mhz, read_clock


def test_multiprocessors_are_read_and_the_clock_is_one_that_gpus_have(measure):
    device, kernel = runtime.device(), read_clock()
    readings = [runtime.to_device(np.zeros((SLOTS, 2), np.uint64)) for _ in range(2)]
    target, source = runtime.empty(1 << 26, np.uint8), runtime.zeros(1 << 26, np.uint8)
    runtime.launch(kernel, kernel.config.grid(device.sms), readings[0])
    for _ in range(20):
        target.copy_from(source)
    runtime.launch(kernel, kernel.config.grid(device.sms), readings[1])
    before, after = (r.to_host() for r in readings)
    for pairs in (before, after):
        assert device.sms // 2 < pairs.any(axis=1).sum() <= device.sms
    mhz = mean_mhz(before, after)
    assert 100 < mhz < 4000
    measure("clock of the multiprocessors during copies: MHz", round(mhz))
