"""The activation quantizers in the simulator: every form writes the reference's bits."""

import numpy as np
import pytest

from minfer.cuda import reference, simulator
from minfer.cuda.quantize import FORMS, QuantizePad40Config, quantize_q8_0_pad40
from tests.cuda.elementwise_cases import rmsnorm_case, swiglu_case
from tests.cuda.quantize_cases import awkward, dequantize_pad40_case, pad40_case, quantize_case

CONFIGS = [QuantizePad40Config(form, threads=32) for form in FORMS]
CONFIGS += [QuantizePad40Config(unroll=n, source=s, threads=32) for n, s in ((2, "f32"), (4, "f16"))]


@pytest.mark.parametrize(("nt", "dim"), [(1, 32), (2, 64), (3, 96), (1, 576)])
def test_q8(nt, dim):
    quantize_case(nt, dim, threads=32).run_simulated()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("nt", "dim"), [(1, 32), (3, 96), (5, 256), (7, 160)])
def test_pad40(config, nt, dim):
    pad40_case(config, awkward(nt, dim)).run_simulated()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_poisons_its_chunk_alone(config, bad):
    x = awkward(1, 128)
    x[0, 40] = bad
    case = pad40_case(config, x)
    simulator.launch(case.kernel, case.grid, *(case.results | case.arguments).values())
    q, d, total = reference.unpack_pad40(case.arguments["chunks"])
    assert list(np.isfinite(d[0])) == [True, False, True, True]
    assert not q[0, 32:64].any() and total[0, 1] == 0
    assert q[0, :32].any()


@pytest.mark.parametrize(("nt", "dim"), [(2, 96), (1, 256)])
def test_fused(nt, dim):
    """The norm and the activation write the chunks themselves."""
    rmsnorm_case(nt, dim, "pad40", threads=32).run_simulated()
    rmsnorm_case(nt, dim, "pad40", residual=True, threads=64).run_simulated()
    swiglu_case(nt, dim, "pad40", packed=True, threads=32).run_simulated()
    for vector in (4, 8):
        swiglu_case(nt, dim, "pad40", "f16", packed=True, vector=vector, threads=64).run_simulated()


def test_the_default_is_shipped():
    from minfer.cuda.quantize import shipped

    assert str(quantize_q8_0_pad40()) in {str(kernel) for kernel in shipped()}


def test_chunks_become_f16_again():
    dequantize_pad40_case(3, 96).run_simulated()
