"""Every shipped GEMM that dequantizes B: ragged shapes, poisoned outputs, right, twice the same bits."""

import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from tests.cuda.gemm_block_cases import block_case

KERNELS = shipped_kernels()["gemm_blocks"]


@pytest.mark.parametrize("shape", [(1, 3, 1), (70, 67, 3), (130, 258, 2)], ids=str)
@pytest.mark.parametrize(
    "kernel", shipped_kernels()["gemm_blocks"], ids=lambda k: str(k.config).replace(" ", "-")
)
def test_small_and_ragged(kernel, shape):
    with runtime.checked():
        block_case(kernel.config, *shape).run_on_gpu()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0"])
def test_at_a_model_s_sizes(name):
    (kernel,) = (k for k in KERNELS if k.config.b_source == name)
    blocks = 3584 // (32 if name == "Q8_0" else 256)
    with runtime.checked():
        block_case(kernel.config, 257, 4608, blocks).run_on_gpu()
