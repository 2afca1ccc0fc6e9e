"""Shapes that nobody chose: random ones, against the references, in the simulator."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minfer.cuda.attention import AttentionConfig, DecodeAttentionConfig
from minfer.cuda.block_dots import DOTS
from minfer.cuda.gemm import A_SOURCES, B_SOURCES, LAYOUTS, OUTPUTS, GemmConfig
from minfer.cuda.gemv import GemvConfig
from tests.cuda import attention_cases, convert_cases, elementwise_cases, gemm_block_cases, gemv_cases
from tests.gpu.gemm_cases import gemm_case

few = settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))


@few
@given(st.sampled_from(sorted(DOTS)), st.integers(1, 9), st.integers(1, 20), st.data())
def test_gemv(format, units, od, data):
    rows = data.draw(st.sampled_from([2**i for i in range((32 // DOTS[format].lanes).bit_length())]))
    slices = 1
    if rows == 1:
        legal = [s for s in range(1, units + 1) if (s - 1) * -(-units // s) < units]
        slices = data.draw(st.sampled_from(legal))
    warps, slots = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    config = GemvConfig(
        format, units * DOTS[format].weights, rows, slices, warps, slots, addend=data.draw(st.booleans())
    )
    gemv_cases.gemv_case(config, od, grid=data.draw(st.integers(1, 4))).run_simulated()


@settings(few, max_examples=6)
@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([16, 32]), st.booleans(), st.integers(1, 2))
def test_prefill_attention(nt, before, tkv, register, stages):
    softmax, pv = ("register", "register") if register else ("warp_per_row", "shared")
    config = AttentionConfig(1, 1, 64, tkv, softmax, pv, stages=stages)
    attention_cases.prefill_case(config, nt, nt + before).run_simulated()


@few
@given(st.integers(1, 60), st.integers(1, 7), st.sampled_from([(1, 1), (3, 1), (4, 2)]))
def test_decode_attention(length, splits, heads):
    config = DecodeAttentionConfig(*heads, 64, splits=splits, warps=1)
    for case in attention_cases.decode_cases(config, length):
        case.run_simulated()


@few
@given(
    st.integers(1, 700),
    st.sampled_from([1, 8]),
    st.integers(1, 4),
    st.integers(1, 150),
    st.sampled_from([1, 4]),
)
def test_converts(n, vector, nt, width, store_vector):
    convert_cases.convert_case(n, vector, threads=32).run_simulated()
    convert_cases.store_kv_case(nt, width, store_vector).run_simulated()


@few
@given(st.integers(1, 3), st.integers(1, 9), st.sampled_from(["f32", "f16", "q8"]), st.booleans())
def test_rows(nt, runs, output, flag):
    elementwise_cases.rmsnorm_case(nt, 32 * runs, output, flag, threads=32).run_simulated()
    elementwise_cases.swiglu_case(nt, 32 * runs, output, packed=flag, threads=32).run_simulated()


@st.composite
def gemm_configs(draw, b_sources):
    """Tiles that one to four warps share in any way."""
    warps_n, warps_m = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (1, 4)]))
    b_source = draw(st.sampled_from(b_sources))
    return GemmConfig(
        tile_n=16 * warps_n * draw(st.integers(1, 2)),
        tile_m=16 * warps_m * draw(st.integers(1, 2)),
        tile_k=draw(st.sampled_from([32, 64] if b_source != "f16" else [16, 32, 64])),
        stages=draw(st.integers(2, 4)),
        warps=warps_n * warps_m,
        warps_n=warps_n,
        layout=draw(st.sampled_from(LAYOUTS)),
        a_source=draw(st.sampled_from(A_SOURCES)),
        b_source=b_source,
        out=draw(st.sampled_from(OUTPUTS)),
    )


@few
@given(gemm_configs(["f16"]), st.integers(1, 70), st.integers(1, 70), st.integers(1, 25))
def test_gemm(config, nt, od, eighths):
    gemm_case(config, nt, od, 8 * eighths).run_simulated()


@few
@given(gemm_configs(B_SOURCES[1:]), st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
def test_gemm_of_blocks(config, nt, od, blocks):
    gemm_block_cases.block_case(config, nt, od, blocks).run_simulated()
