"""mma.sync: warp-level matrix multiply-accumulate. The fragments' maps are in `minfer.cuda.tile.maps`."""

from minfer.cuda.instruction import f32, instruction, s32, u32

_SECTION = "9.7.14.5.14 mma"
_ACCUMULATORS = ("c0", "c1", "c2", "c3")


def _text(shape: str, d: str, a: str, b: str) -> str:
    return (
        f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d} "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )


@instruction(
    _text("m16n8k16", "f32", "f16", "f16"), section=_SECTION, pure=True, collective=True, tied=_ACCUMULATORS
)
def mma_m16n8k16_f16(
    a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32
) -> (f32, f32, f32, f32):
    """C[16, 8] + A[16, 16] B[16, 8]: f16 pairs in, f32 accumulation."""


@instruction(
    _text("m16n8k16", "f32", "bf16", "bf16"), section=_SECTION, pure=True, collective=True, tied=_ACCUMULATORS
)
def mma_m16n8k16_bf16(
    a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32
) -> (f32, f32, f32, f32):
    """C[16, 8] + A[16, 16] B[16, 8]: bf16 pairs in, f32 accumulation."""


@instruction(
    _text("m16n8k32", "s32", "s8", "s8"), section=_SECTION, pure=True, collective=True, tied=_ACCUMULATORS
)
def mma_m16n8k32_s8(
    a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: s32, c1: s32, c2: s32, c3: s32
) -> (s32, s32, s32, s32):
    """C[16, 8] + A[16, 32] B[32, 8]: four signed bytes a register in, exact s32 accumulation (wraps)."""


@instruction(
    _text("m16n8k32", "s32", "u8", "s8"), section=_SECTION, pure=True, collective=True, tied=_ACCUMULATORS
)
def mma_m16n8k32_u8s8(
    a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: s32, c1: s32, c2: s32, c3: s32
) -> (s32, s32, s32, s32):
    """As `mma_m16n8k32_s8` with unsigned bytes in A."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
    section=_SECTION,
    pure=True,
    collective=True,
    tied=_ACCUMULATORS,
)
def mma_m16n8k16_s8(a0: u32, a1: u32, b0: u32, c0: s32, c1: s32, c2: s32, c3: s32) -> (s32, s32, s32, s32):
    """C[16, 8] + A[16, 16] B[16, 8]: as `mma_m16n8k32_s8` over half the depth (its a0, a1, b0, or a2, a3,
    b1)."""


@instruction(
    _text("m16n8k32", "s32", "s8", "u8"), section=_SECTION, pure=True, collective=True, tied=_ACCUMULATORS
)
def mma_m16n8k32_s8u8(
    a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: s32, c1: s32, c2: s32, c3: s32
) -> (s32, s32, s32, s32):
    """As `mma_m16n8k32_s8` with unsigned bytes in B."""
