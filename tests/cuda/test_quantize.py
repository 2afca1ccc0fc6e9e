"""Activation quantizers without a GPU: the reference's mathematics, the configs, and clean code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.cuda import quantize, reference
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.q8 import PAD40_BYTES, pad40_bytes
from minfer.cuda.quantize import FORMS, QuantizePad40Config, quantize_q8_0_pad40
from minfer.cuda.runtime import NotFinite, compile_kernel
from minfer.cuda.runtime.checking import check_finite
from tests.cuda.quantize_cases import awkward

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_a_chunk_byte_by_byte():
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = [127, -63.5, 0.5, 1.5]  # d is 1: halves go to the even neighbour
    chunks = reference.pack_pad40(*reference.quantize_pad40(x))
    assert chunks.shape == (1, 1, PAD40_BYTES) and pad40_bytes(32) == PAD40_BYTES
    raw = chunks.tobytes()
    assert raw[:4] == np.float16(1).tobytes() + b"\0\0"
    assert list(np.frombuffer(raw[4:12], np.int8)) == [127, -64, 0, 2, 0, 0, 0, 0]
    assert np.frombuffer(raw[36:], np.int32)[0] == 127 - 64 + 2


def test_chunks_round_trip():
    x = awkward(3, 256)
    made = reference.quantize_pad40(x)
    chunks = reference.pack_pad40(*made)
    for got, wanted in zip(reference.unpack_pad40(chunks), made, strict=True):
        np.testing.assert_array_equal(got, wanted)
    step = np.repeat(made[1].astype(np.float64), 32, axis=-1)
    normal = step >= 2.0**-14  # where f16 holds the scale to 11 bits
    error = np.abs(reference.dequantize_pad40(chunks) - x)
    assert np.all(error[normal] <= (0.5 * step + np.abs(x) * 2.0**-11)[normal] * 1.001)


@given(st.lists(floats, min_size=32, max_size=32))
def test_the_clamp_never_acts(values):
    """Why the kernels have none: 127 / max|x| times x rounds to 127 at most."""
    x = np.array(values, np.float32)
    top = np.abs(x).max()
    with np.errstate(over="ignore"):
        if np.float16(top / np.float32(127)) == 0:
            return
        scaled = np.rint(x * (np.float32(127) / top))
    assert np.abs(scaled).max() == 127
    np.testing.assert_array_equal(reference.quantize_pad40(x)[0], scaled)


@given(st.lists(floats, min_size=32, max_size=32), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_not_finite_stays_so(values, bad):
    x = np.array(values, np.float32)
    x[17] = bad
    q, d, total = reference.quantize_pad40(x)
    assert not np.isfinite(d[0]) and total[0] == 0 and not q.any()


def test_a_scale_that_f16_cannot_hold_is_zero():
    q, d, total = reference.quantize_pad40(np.full(32, 127 * 2.0**-26, np.float32))
    assert (d[0], total[0], q.any()) == (0, 0, False)
    q, d, _ = reference.quantize_pad40(np.full(32, 127 * 2.0**-24, np.float32))
    assert d[0] == np.float16(2.0**-24) and (q == 127).all()


def test_checked_mode_names_what_is_not_finite():
    x = np.ones((2, 32), np.float32)
    kernel = quantize_q8_0_pad40()
    check_finite(kernel, "x", x)
    x[1, 3], x[1, 5] = np.nan, np.inf
    with pytest.raises(NotFinite, match=r"2 of 64 elements of input 'x' are NaN or infinite, first nan at"):
        check_finite(kernel, "x", x)
    assert [argument.name for argument in kernel.arguments if argument.finite] == ["x"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"form": "fast"}, "form='fast'; the variants are serial, tree, warp"),
        ({"form": "tree", "source": "f16"}, "tree takes f32"),
        ({"form": "serial", "unroll": 2}, "unroll=2"),
        ({"unroll": 3}, "unroll=3"),
        ({"threads": 48}, "48 threads"),
    ],
)
def test_refusals(fields, says):
    with pytest.raises(ConfigRefused, match=says):
        QuantizePad40Config(**fields)


def test_grids_cover_every_chunk():
    assert QuantizePad40Config("tree", threads=64).grid(3, 96) == (1, 1, 1)
    assert QuantizePad40Config("tree", threads=64).grid(13, 160) == (2, 1, 1)
    assert QuantizePad40Config(threads=32).grid(3, 96) == (3, 1, 1)  # 4 chunks a block
    assert QuantizePad40Config(threads=32, unroll=4).grid(3, 96) == (1, 1, 1)
    assert QuantizePad40Config().grid(2048, 18944) == (37888, 1, 1)
    assert QuantizePad40Config(source="f16").grid(2048, 18944) == (18944, 1, 1)  # 8 activations a lane


@pytest.mark.parametrize("form", FORMS)
def test_compiles_clean(form):
    compiled = compile_kernel(quantize_q8_0_pad40(QuantizePad40Config(form)), "sm_80")
    resources = compiled.resources
    assert resources.spill_store_bytes == resources.stack_bytes == 0 and ".local" not in compiled.ptx
    assert compiled.ptx.count("div.rn.f32") == 2
    if form != "serial":
        assert ("ld.global.nc.v4.f32" if form == "tree" else "ld.global.v4.f32") in compiled.ptx
        assert "st.global.b8" not in compiled.ptx and "st.global.u8" not in compiled.ptx


def test_shipped():
    names = {kernel.name for kernel in quantize.shipped()}
    assert names == {"quantize_q8", "quantize_q8_0_pad40", "dequantize_pad40"}
