"""The kernels' barriers, waits and warp barriers, by the race detector: nothing found at several tiles."""

import numpy as np
import pytest

from minfer.cuda.attention import AttentionConfig, DecodeAttentionConfig
from minfer.cuda.gemv import GemvConfig
from minfer.cuda.trace import Trace, check
from tests.cuda import attention_cases, elementwise_cases, gemv_cases


def races(case) -> list:
    trace = Trace()
    case.run_simulated(trace=trace)
    return check(trace)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("softmax", "pv"), [("register", "register"), ("warp_per_row", "shared"), ("serial", "scalar")]
)
def test_prefill_attention(softmax, pv, stages):
    config = AttentionConfig(1, 1, 64, 16, softmax, pv, stages=stages)
    assert races(attention_cases.prefill_case(config, nt=3, kv_end=41)) == []


def test_decode_attention():
    for case in attention_cases.decode_cases(DecodeAttentionConfig(2, 1, 64, splits=2, warps=2), 37):
        assert races(case) == []


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize(("format", "rows", "slots"), [("Q4_K", 2, 2), ("Q6_K", 1, 1), ("Q5_0", 4, 3)])
def test_gemv(format, rows, slots, pdl):
    config = GemvConfig(format, 512, rows=rows, warps=2, slots=slots, pdl=pdl)
    assert races(gemv_cases.gemv_case(config, 19, grid=2)) == []


def test_block_reductions():
    assert races(elementwise_cases.rmsnorm_case(2, 96, "q8", residual=True, threads=64)) == []
    for case in elementwise_cases.argmax_cases(np.arange(300, dtype=np.float32), threads=64, blocks=2):
        assert races(case) == []
