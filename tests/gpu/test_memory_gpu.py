"""Reading and copying memory on a GPU: every piece, and none twice."""

import pytest

from minfer.cuda.memory import MemoryConfig
from tests.cuda.memory_cases import memory_cases


@pytest.mark.parametrize("loads", [1, 2, 4, 8])
@pytest.mark.parametrize("pieces", [1, 31, 4096, 4097, 100_003])
def test_read_and_copy(pieces, loads):
    for case in memory_cases(MemoryConfig(loads, threads=256, blocks=2), pieces, sms=3):
        case.run_on_gpu()
