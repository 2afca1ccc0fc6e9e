"""Reading memory on a GPU: every piece, and none twice."""

import pytest

from minfer.cuda.memory import ReadMemoryConfig
from tests.cuda.memory_cases import read_case


@pytest.mark.parametrize("loads", [1, 2, 4, 8])
@pytest.mark.parametrize("pieces", [1, 31, 4096, 4097, 100_003])
def test_read(pieces, loads):
    read_case(ReadMemoryConfig(loads, threads=256, blocks=2), pieces, sms=3).run_on_gpu()
