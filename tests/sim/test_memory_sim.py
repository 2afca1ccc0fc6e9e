"""The kernel that reads memory, in the simulator: ragged sizes, poisoned outputs, exact buffers."""

import pytest

from minfer.cuda.memory import ReadMemoryConfig
from tests.cuda.memory_cases import read_case


@pytest.mark.parametrize("loads", [1, 4])
@pytest.mark.parametrize("pieces", [1, 63, 64, 255, 256, 257, 600])
def test_read(pieces, loads):
    read_case(ReadMemoryConfig(loads, threads=32, blocks=1), pieces).run_simulated()
