"""The activation quantizers on a GPU: bit for bit, at every form and shape, and what checked mode says."""

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.quantize import FORMS, QuantizePad40Config, quantize_q8_0_pad40
from tests.cuda.elementwise_cases import rmsnorm_case, swiglu_case
from tests.cuda.quantize_cases import awkward, dequantize_pad40_case, pad40_case, quantize_case

CONFIGS = [QuantizePad40Config(form) for form in FORMS]
CONFIGS += [QuantizePad40Config(unroll=2), QuantizePad40Config(source="f16", unroll=2)]


@pytest.mark.parametrize("nt", [1, 2, 7, 33, 129, 512])
def test_q8(nt):
    for dim in (32, 96, 576, 3584, 18944):
        quantize_case(nt, dim).run_on_gpu()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("nt", [1, 2, 9, 33, 129, 743])
def test_pad40(config, nt):
    for dim in (32, 96, 576, 3584):
        pad40_case(config, awkward(nt, dim)).run_on_gpu()


def test_pad40_of_the_largest_activation():
    pad40_case(QuantizePad40Config(), awkward(2048, 18944)).run_on_gpu()


def test_chunks_become_f16_again():
    for nt, dim in ((1, 32), (33, 3584)):
        dequantize_pad40_case(nt, dim).run_on_gpu()


def test_fused():
    for nt, dim in ((1, 96), (33, 3584)):
        rmsnorm_case(nt, dim, "pad40").run_on_gpu()
        rmsnorm_case(nt, dim, "pad40", residual=True).run_on_gpu()
        swiglu_case(nt, dim, "pad40", packed=True).run_on_gpu()
        swiglu_case(nt, dim, "pad40", "f16", packed=True, vector=8).run_on_gpu()


@pytest.mark.parametrize("form", FORMS)
def test_checked_mode_reports_what_is_not_finite(form):
    x = np.ones((4, 96), np.float32)
    config = QuantizePad40Config(form)
    chunks = runtime.empty((4, 3, 40), np.uint8)
    with runtime.checked():
        runtime.launch(quantize_q8_0_pad40(config), config.grid(4, 96), runtime.to_device(x), chunks, 12)
    for bad in (np.nan, np.inf):
        x[2, 5] = bad
        with runtime.checked(), pytest.raises(runtime.NotFinite, match=r"1 of 384 .* at \(2, 5\)"):
            runtime.launch(quantize_q8_0_pad40(config), config.grid(4, 96), runtime.to_device(x), chunks, 12)
