"""One or two small launches of every shipped kernel, on ragged shapes and buffers of exactly the size that
the kernel may touch: what compute-sanitizer watches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.cuda.hopper_attention_cases import HopperCase
from tests.cuda.parity import Case


def small_sequences() -> Iterator[tuple[Case | HopperCase, ...]]:
    """Every case, alone or with those to run right before it, whose results it reads."""
    families = (
        _memory,
        _resident,
        _convert,
        _elementwise,
        _attention,
        _attention_hopper,
        _gemm,
        _gemm_blocks,
        _gemm_hopper,
        _gemv,
        _token,
        _mmq,
        _quantize,
        _dequantize,
        _w4a16,
        _w4a8,
    )
    for cases in families:
        yield from (tuple(case) if isinstance(case, list) else (case,) for case in cases())


def small_cases() -> Iterator[Case | HopperCase]:
    """Every case, in an order that they can run in."""
    return (case for sequence in small_sequences() for case in sequence)


def _gemm_hopper() -> Iterator[Case]:
    from minfer.cuda.gemm_hopper import GemmHopperConfig, Heads
    from tests.cuda.gemm_hopper_cases import hopper_case, rope_case

    yield hopper_case(GemmHopperConfig(64, 3), 100, 72, 72, multiprocessors=1)
    yield hopper_case(GemmHopperConfig(80, 2), 300, 168, 136)
    yield hopper_case(GemmHopperConfig(224, 4), 130, 232, 8)
    yield hopper_case(GemmHopperConfig(72, 2, out="f32", epilogue="add"), 70, 136, 72)
    yield hopper_case(GemmHopperConfig(128, 2, epilogue="swiglu"), 300, 72, 72)
    yield hopper_case(GemmHopperConfig(144, 2, epilogue="swiglu"), 140, 80, 72)
    yield hopper_case(GemmHopperConfig(80, 2, tile_n=192), 200, 88, 72)
    yield hopper_case(GemmHopperConfig(144, 2, epilogue="swiglu", tile_n=256), 140, 80, 72)
    yield hopper_case(GemmHopperConfig(200, 2, tile_n=256), 300, 208, 200, multiprocessors=1)
    yield hopper_case(GemmHopperConfig(80, 2, pdl=True), 300, 168, 136)
    yield hopper_case(GemmHopperConfig(80, 2, split_k=True), 140, 168, 264, multiprocessors=12)
    yield hopper_case(GemmHopperConfig(80, 3, split_k=True, split_lead=2), 140, 168, 584, multiprocessors=12)
    split, interleaved = Heads(2, 1, 128, bias=True), Heads(2, 1, 64, interleaved=True)
    yield rope_case(GemmHopperConfig(192, 2, epilogue="rope", tile_n=192, heads=split), 200, 72)
    yield rope_case(GemmHopperConfig(64, 2, epilogue="rope", heads=interleaved), 70, 72)


def _gemm_blocks() -> Iterator[Case]:
    from minfer.cuda.gemm import B_SOURCES, GemmConfig
    from tests.cuda.gemm_block_cases import block_case

    for name in B_SOURCES[1:]:
        for layout, out in (("swizzled", "f32"), ("padded", "f16")):
            yield block_case(GemmConfig(layout=layout, b_source=name, out=out), 5, 67, 3)
    yield block_case(GemmConfig(a_source="f32_mirror", b_source="Q4_K"), 66, 67, 1)


def _memory() -> Iterator[Case]:
    from minfer.cuda.memory import ReadMemoryConfig
    from tests.cuda.memory_cases import read_case

    yield read_case(ReadMemoryConfig(2, threads=32, blocks=1), 331)


def _resident() -> Iterator[Case]:
    from minfer.cuda.resident import ResidentConfig
    from tests.cuda.resident_cases import resident_case

    yield resident_case(ResidentConfig(tile_m=16, stages=2), 5)
    yield resident_case(ResidentConfig(256, 32, 2, "s8"), 3)
    yield resident_case(ResidentConfig(stages=2, instruction="mma.sync"), 3)


def _convert() -> Iterator[Case]:
    from tests.cuda.convert_cases import convert_case, store_kv_case

    for vector in (1, 8):
        yield convert_case(133, vector)
    for vector in (1, 4):
        yield store_kv_case(3, 130, vector)


def _elementwise() -> Iterator[Case | list[Case]]:
    import numpy as np

    from tests.cuda import elementwise_cases as cases

    for output in ("f32", "f16", "q8", "pad40"):
        yield cases.rmsnorm_case(3, 96, output, residual=True)
        yield cases.swiglu_case(3, 96, output)
    yield cases.bias_add_case(3, 52)
    yield cases.residual_add_case(3, 52)
    yield cases.rope_case(3, 2, 32, 32, interleaved=False)
    yield cases.rope_store_case(3, 4, 2, 32, 32, False, True, "f16")
    yield cases.embedding_case("Q4_K", 256, [0, 8, 3])
    yield cases.argmax_cases(np.random.default_rng(0).normal(size=1003).astype(np.float32))


def _attention() -> Iterator[Case | list[Case]]:
    from minfer.cuda.attention import DecodeAttentionConfig, seed_steps
    from tests.cuda.attention_cases import decode_cases, prefill_case

    for config in seed_steps(2, 1, 64).values():
        yield prefill_case(config, nt=17, kv_end=83)
    yield decode_cases(DecodeAttentionConfig(6, 2, 64, splits=3), 37)


def _attention_hopper() -> Iterator[HopperCase]:
    from minfer.cuda.attention import HopperAttentionConfig, hopper_steps

    for config in hopper_steps(3, 1, 128).values():
        yield HopperCase(config, 133, 171)
    yield HopperCase(HopperAttentionConfig(3, 3, 64), 70)


def _w4a16() -> Iterator[Case]:
    from minfer.cuda.w4a16 import PAIR, W4A16Config
    from tests.cuda.w4a16_cases import Product

    yield Product.random(W4A16Config("Q4_K", 128, 4), 70, 72, 3).case(2)
    yield Product.random(W4A16Config("Q6_K", 152, 4, store="direct"), 70, 67, 2).case(2)
    yield Product.random(W4A16Config("Q4_K", 128, 4, gated=True), 130, 2 * 136, 1).case(2)
    yield Product.random(W4A16Config("Q4_K", 192, 4, consumers=3), 200, 200, 2).case(2)
    yield Product.random(W4A16Config(PAIR, 128, 4), 70, (128, 72), 3).case(1)
    # A narrow last column, and a last round in reverse.
    yield Product.random(W4A16Config(PAIR, 136, 4, narrow=True), 200, (256, 256), 1).case(3)
    yield Product.random(W4A16Config(PAIR, 128, 4, other_tokens=72), 140, (128, 72), 1).case(3)
    yield Product.random(W4A16Config("Q4_K", 80, 4, split_k=2), 140, 136, 3).case(12)
    yield Product.random(W4A16Config("Q6_K", 128, 4, split_k=4), 70, 72, 5).case(8)


def _w4a8() -> Iterator[Case]:
    import numpy as np

    from minfer.cuda.w4a8 import W4A8Config
    from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig
    from tests.cuda.w4a8_cases import activations, product_case, quantize_case

    for source, dtype in (("f16", np.float16), ("f32", np.float32)):
        yield quantize_case(QuantizeGroupsConfig(source), activations(3, 1024).astype(dtype))
    yield product_case(W4A8Config(), activations(70, 1024), 136, 2)
    yield product_case(W4A8Config(gated=True), activations(70, 1024, gated=True), 72, 2)


def _gemv() -> Iterator[Case]:
    from minfer.cuda.block_dots import DOTS
    from minfer.cuda.gemv import GemvConfig
    from tests.cuda.gemv_cases import gemv_case

    for format, dot in DOTS.items():
        config = GemvConfig(format, 3 * dot.weights, rows=2, warps=2, addend=True)
        yield gemv_case(config, 13, grid=3)
    yield gemv_case(GemvConfig("Q6_K", 5 * 256, slices=2, warps=2, slots=3), 13, grid=3)
    yield gemv_case(GemvConfig("Q6_K", 5 * 256, slices=2, warps=2, layout="planes"), 13, grid=3)
    yield gemv_case(GemvConfig("Q6_K", 5 * 256, slices=2, warps=2, slots=3, pdl=True), 13, grid=3)
    yield gemv_case(GemvConfig("Q4_K", 3 * 256, rows=2, warps=2, addend=True, pdl=True), 13, grid=3)
    yield gemv_case(GemvConfig("Q4_K", 5 * 256, rows=16, warps=2, dots="mma", pdl=True), 37, grid=2)


def _token() -> Iterator[Case]:
    from minfer.cuda.token import LAST_STEP, TOKEN_STEPS, TokenConfig
    from tests.cuda.token_cases import token_case

    config = TokenConfig(4, 2, 64, 64, 256, 512, entries=7, bias=True, blocks=5, warps=3)
    for step in ("barriers", "tags", "two-bit tags"):
        made = replace(config, **TOKEN_STEPS[step])
        yield token_case(made, [("Q6_K", "Q4_K")], position=37)
        yield token_case(made, [("Q6_K", "Q6_K")], position=400)
    spared = replace(config, blocks=16, **TOKEN_STEPS[LAST_STEP])
    yield token_case(spared, [("Q6_K", "Q4_K")], position=37)


def _quantize() -> Iterator[Case]:
    from minfer.cuda.quantize import FORMS, QuantizePad40Config
    from tests.cuda.quantize_cases import awkward, dequantize_pad40_case, pad40_case, quantize_case

    yield quantize_case(3, 96)
    for form in FORMS:
        yield pad40_case(QuantizePad40Config(form), awkward(3, 96))
    yield pad40_case(QuantizePad40Config(source="f16", unroll=2), awkward(3, 96))
    yield dequantize_pad40_case(3, 96)


def _gemm() -> Iterator[Case]:
    from minfer.cuda.gemm import GemmConfig
    from tests.gpu.gemm_cases import gemm_case

    for layout in ("padded", "swizzled", "plain"):
        yield gemm_case(GemmConfig(layout=layout), 70, 67, 72)
    yield gemm_case(GemmConfig(a_source="f32_mirror"), 66, 64, 72)
    yield gemm_case(GemmConfig(128, 128, 64, 3, layout="swizzled", out="f16"), 130, 136, 200)


def _mmq() -> Iterator[Case]:
    from minfer.cuda.mmq import WEIGHT_TYPES, fast, large, narrow, r1, stream
    from tests.cuda.mmq_cases import mmq_case

    for weight_type in WEIGHT_TYPES:
        depth = 256 if weight_type.endswith("_K") else 5 * 32
        for config in (r1(weight_type), narrow(weight_type), fast(weight_type)):
            yield mmq_case(config, 67, 71, depth)
    yield mmq_case(narrow("Q6_K").checking(), 5, 7, 512)
    for config in (stream("Q4_K"), stream("Q6_K"), large("Q4_K")):
        yield mmq_case(config, 67, 300, 512, sms=3)


def _dequantize() -> Iterator[Case]:
    from minfer.cuda.blocks import BLOCKS
    from tests.cuda.dequantize_cases import dequantize_case

    for format in BLOCKS:
        yield dequantize_case(format, 3, 256)
