"""Blocks to f16 in the simulator, every format."""

import pytest

from minfer.cuda.blocks import BLOCKS
from minfer.cuda.dequantize import DequantizeConfig
from minfer.cuda.kernel import ConfigRefused
from tests.cuda.dequantize_cases import dequantize_case


@pytest.mark.parametrize("format", BLOCKS)
def test_dequantize(format):
    dequantize_case(format, 3, 512 if BLOCKS[format].weights == 256 else 96, threads=32).run_simulated()


def test_refusals():
    with pytest.raises(ConfigRefused, match="multiple of 8"):
        DequantizeConfig("F16", 12)
    with pytest.raises(ConfigRefused, match="multiple of 256"):
        DequantizeConfig("Q4_K", 128)
