"""The memory plan of the cuda backend: arithmetic only."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.cuda.w4a16 import split_workspace
from minfer.engine.cuda.plan import (
    FEW_TOKENS,
    RESERVE_BYTES,
    SCRATCH,
    WAYS,
    MatrixShape,
    activation_bytes,
    decode_splits,
    plan_memory,
)
from minfer.engine.cuda.routes import Route
from minfer.engine.errors import EngineError
from minfer.model.config import ModelConfig, RopeConfig

ROPE = RopeConfig(128, 1e6, interleaved=False)
CONFIG = ModelConfig(
    "qwen2", "7B", 28, 3584, 28, 4, 128, 18944, 152064, 32768, 1e-6, ROPE, False, True, False
)  # fmt: skip
F16 = Route("f16")
GB = 1_000_000_000


def layer(more_bits: bool) -> list[list[MatrixShape]]:
    high = "Q6_K" if more_bits else "Q4_K"
    return [
        [MatrixShape("Q4_K", 3584, 3584), MatrixShape("Q4_K", 512, 3584), MatrixShape(high, 512, 3584)],
        [MatrixShape("Q4_K", 3584, 3584)],
        [MatrixShape("Q4_K", 18944, 3584)] * 2,
        [MatrixShape(high, 3584, 18944)],
    ]


LAYERS = [layer(i % 2 == 0) for i in range(28)]
TABLES = [MatrixShape("Q4_K", 152064, 3584), MatrixShape("Q6_K", 152064, 3584)]


def plan(free: int, n_ctx: int = 4096, chunk: int = 2048, route: Route = F16, ways=WAYS, layers=LAYERS):
    return plan_memory(CONFIG, layers, TABLES, n_ctx, chunk, route, free, 132, ways=ways)


def test_sizes_of_a_matrix():
    assert MatrixShape("Q4_K", 3584, 3584).block_bytes == 3584 * 14 * 144
    assert MatrixShape("Q6_K", 2, 512).block_bytes == 2 * 2 * 210
    assert MatrixShape("Q6_K", 2, 512).half_bytes == 2048


def test_a_large_gpu_keeps_f16_copies():
    made = plan(141 * GB)
    assert made.resident
    per_layer = 3584 * (3584 + 1024) + 3584 * 3584 + 3 * 3584 * 18944
    assert made.parts["weights as f16"] == 2 * 28 * per_layer
    assert made.parts["KV cache of 4,096 tokens"] == 28 * 2 * 4096 * 512 * 2
    assert made.total == sum(made.parts.values())
    assert re.fullmatch(
        r"memory: weights as blocks 4\.68 GB, .* 18\.\d\d GB of 141\.00 GB free; .* f16 copies", str(made)
    )


def test_a_smaller_one_dequantizes_before_each_product():
    made = plan(12 * GB)
    assert made.weights == "scratch"
    assert made.parts[SCRATCH] == 2 * 37888 * 3584
    assert "weights as f16" not in made.parts
    assert str(made).endswith("; prefill dequantizes every matrix before its product")


def test_without_room_for_the_scratch_the_gemm_reads_blocks():
    scratch = plan(12 * GB).total + RESERVE_BYTES
    assert plan(scratch).weights == "scratch"
    made = plan(scratch - 1)
    assert made.weights == "blocks"
    assert SCRATCH not in made.parts
    assert str(made).endswith("; prefill dequantizes within its products")


def test_formats_that_no_gemm_reads_keep_a_scratch():
    odd = [[MatrixShape("F32", 512, 3584), MatrixShape("F32", 100, 3584), MatrixShape("F16", 512, 3584)]]
    made = plan(141 * GB, ways=("blocks",), layers=[odd, *LAYERS])
    assert made.parts[SCRATCH] == 2 * 612 * 3584


def test_a_way_that_is_asked_for_is_taken_or_refused():
    for way in WAYS:
        assert plan(141 * GB, ways=(way,)).weights == way
    with pytest.raises(
        EngineError, match=r"weights as f16 .* of 12\.00 GB free; use .* the weights as blocks,"
    ):
        plan(12 * GB, ways=("resident",))


def test_too_small_a_gpu_is_refused_with_numbers():
    with pytest.raises(
        EngineError, match=r"does not fit: weights as blocks 4\.68 GB, .* of 4\.00 GB free; use"
    ):
        plan(4 * GB)


@given(free=st.integers(0, 40 * GB), chunk=st.integers(1, 4096), n_ctx=st.integers(1, 32768))
def test_what_is_planned_fits(free, chunk, n_ctx):
    """Whatever is free: a plan leaves the reserve, and the copy is given up exactly when it does not fit."""
    needed = {way: plan(1 << 60, n_ctx, chunk, ways=(way,)).total + RESERVE_BYTES for way in WAYS}
    assert needed["resident"] > needed["scratch"] > needed["blocks"]
    try:
        made = plan(free, n_ctx, chunk)
    except EngineError:
        assert needed["blocks"] > free
        return
    assert made.total + RESERVE_BYTES <= free
    assert made.weights == next(way for way in WAYS if needed[way] <= free)


@pytest.mark.parametrize("chunk", [1, FEW_TOKENS, FEW_TOKENS + 1, 2048])
def test_buffers_hold_every_form(chunk):
    """f16 or f32 for the GEMMs; for few tokens f32 and q8 records, of 80 bytes for 64."""
    few = min(chunk, FEW_TOKENS)
    for route, element in ((Route("f16"), 2), (Route("f16", convert="vector"), 4)):
        sizes = activation_bytes(CONFIG, chunk, route)
        for role, width in (("normed", 3584), ("attended", 3584), ("activated", 18944)):
            assert sizes[role] >= max(chunk * width * element, few * width * 4, few * -(-width // 64) * 80)
        assert sizes["gate_up"] >= max(chunk * element, few * 4) * 2 * 18944
        assert sizes["qkv"] == 4 * chunk * 4608
        assert sizes["queries"] >= max(2 * chunk, 4) * 3584
    assert sizes["converted"] == 2 * chunk * 18944


def test_splits_of_the_decode_attention():
    assert decode_splits(CONFIG, 32768, 132) == 64
    assert decode_splits(CONFIG, 2048, 132) == 32
    assert decode_splits(CONFIG, 100, 132) == 2
    assert decode_splits(CONFIG, 1, 132) == 1


def test_mmq_routes_keep_no_f16_copy():
    """What a 7B saves: its whole f16 copy, on a device that would have room for it."""
    f16, mmq = plan(141 * GB), plan(141 * GB, route=Route("mmq", mmq="mmq"))
    assert mmq.saved == f16.parts["weights as f16"] and f16.saved == 0
    assert str(mmq).endswith("free; no f16 copy of the weights, 13.05 GB saved")
    assert not any("f16" in part for part in mmq.parts)
    chunks = 2048 * 18944 // 32 * 40
    assert mmq.activations["activated"] == chunks < f16.activations["activated"]
    assert mmq.activations["converted"] == 2048 * 3584 // 32 * 40


def test_w4a16_keeps_no_f16_copy_though_v_is_of_another_format():
    w4a16 = Route("w4a16", wgmma=True, hopper_attention=True, w4a16=True)
    made = plan(141 * GB, n_ctx=2048, route=w4a16)
    assert made.saved == plan(141 * GB).parts["weights as f16"] and made.total < 5.2e9
    assert str(made).endswith("free; no f16 copy of the weights, 13.05 GB saved")
    assert made.parts["parts of tiles"] == 4 * sum(split_workspace(132))


def test_matrices_that_no_mmq_kernel_takes_get_a_scratch():
    layers = [[*some[:3], [MatrixShape("F16", 3584, 18944)]] for some in LAYERS]
    made = plan_memory(
        CONFIG, layers, TABLES, 4096, 2048, Route("mmq", mmq="mmq"), 141 * GB, 132, shared_bytes=101376
    )
    assert made.parts["f16 scratch of one matrix"] == 2 * 3584 * 18944
    assert made.forms == {"normed": "pad40", "attended": "f16", "activated": "f16"}
