"""The W4A8 GEMM's configs, and a kernel compiled without a GPU."""

import numpy as np
import pytest

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.runtime import compile_kernel
from minfer.cuda.w4a8 import W4A8Config, w4a8
from minfer.cuda.w4a8.formats import FACTOR
from tests.cuda.w4a8_cases import positive_matrix, quantized, reference


def test_the_factor_is_the_largest_that_fits():
    assert 15 * 63 * FACTOR + 128 < 2**16 <= 15 * 63 * (FACTOR + 1) + 128


def test_sums_of_a_group_are_exact_in_f32():
    assert 512 * 255 * 127 < 2**24


def test_rounding_to_bytes_costs_little():
    """Against the blocks' exact values: within one percent."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    draw = np.random.default_rng(0)
    x, packed = draw.standard_normal((16, 1024)), positive_matrix(64, 1024)
    a, _, scales = quantized(x, 16)
    c, integers, _ = reference(packed, a, scales)
    exact = x @ dequantize(packed, GGMLQuantizationType.Q4_K).astype(np.float64).T
    assert np.linalg.norm(c - exact) < 0.012 * np.linalg.norm(exact)
    assert np.abs(integers).max() < 2**24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((72,), "72 tokens"), ((144,), "144 tokens"), ((128, 1), "1 stages"), ((128, 8), "fewer stages")],
)
def test_configs_that_cannot_run_are_refused(arguments, message):
    with pytest.raises(ConfigRefused, match=message):
        W4A8Config(*arguments)


def test_products_that_do_not_fit_are_refused():
    W4A8Config().check(1, 1, 512, 8)
    for depth, width in ((256, 8), (512, 12)):
        with pytest.raises(ConfigRefused, match="multiple of 512"):
            W4A8Config().check(1, 1, depth, width)


def test_assembled_without_spills_and_serialisation():
    compiled = compile_kernel(w4a8(W4A8Config()), "sm_90a")
    resources = compiled.resources
    assert ".local" not in compiled.ptx
    assert resources.spill_bytes == resources.stack_bytes == 0
    assert resources.warnings == ()
    # Four k-tiles of four steps in integers, two steps of minima.
    assert resources.instructions["wgmma"] == 18
