"""Blocks to f16 on the GPU, every format, at ragged row counts and the 7B's widths."""

import pytest

from minfer.cuda.blocks import BLOCKS
from tests.cuda.dequantize_cases import dequantize_case


@pytest.mark.parametrize("format", BLOCKS)
def test_dequantize(format):
    for rows, dim in ((1, 256), (9, 3584), (33, 18944)):
        dequantize_case(format, rows, dim).run_on_gpu()
