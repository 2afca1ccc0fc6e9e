"""The kernels that read and copy memory, in the simulator: ragged sizes, poisoned outputs, exact buffers."""

import pytest

from minfer.cuda.memory import MemoryConfig
from tests.cuda.memory_cases import memory_cases


@pytest.mark.parametrize("loads", [1, 4])
@pytest.mark.parametrize("pieces", [1, 63, 64, 255, 256, 257, 600])
def test_read_and_copy(pieces, loads):
    for case in memory_cases(MemoryConfig(loads, threads=32, blocks=1), pieces):
        case.run_simulated()
