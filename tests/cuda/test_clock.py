"""The clock from the multiprocessors' counters."""

import numpy as np
import pytest

from minfer.cuda.clock import SLOTS, ClockConfig, mean_mhz, read_clock
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.runtime import compile_kernel
from tests.cuda.clock_cases import clock_case


def test_simulated_blocks_read_their_own_counters():
    case = clock_case(3)
    case.run_simulated()


def test_reads_both_counters_in_the_machine_code():
    compiled = compile_kernel(read_clock(), "sm_90a")
    assert "%clock64" in compiled.ptx and "%globaltimer" in compiled.ptx and "%smid" in compiled.ptx
    assert compiled.resources.spill_bytes == 0


def test_the_mean_is_of_what_both_readings_hold():
    before, after = np.zeros((2, SLOTS, 2), np.uint64)
    before[[0, 3, 9]] = (1000, 500), (70, 500), (5, 500)
    after[[0, 3, 7]] = (1000 + 3000, 2500), (70 + 3200, 2500), (9, 2500)
    assert mean_mhz(before, after) == pytest.approx(1550)
    assert mean_mhz(before, before) is None
    assert mean_mhz(np.zeros_like(before), after) is None


def test_config_is_checked():
    with pytest.raises(ConfigRefused, match=r"threads = 1\.5 is no whole number"):
        ClockConfig(1.5)
