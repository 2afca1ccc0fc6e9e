"""The configs of the MMQ family by name: the seed's three, and the fast ones."""

from __future__ import annotations

from dataclasses import replace

from minfer.cuda.mmq.config import ALIGNED_TYPES, WITH_MINIMUM, MmqConfig


def narrow(weight_type: str = "Q4_K", kd: int = 8) -> MmqConfig:
    """Raw bytes, 64 tokens x 64 rows: the seed's mmq_raw_nt_kernel."""
    return MmqConfig(weight_type=weight_type, kd=kd)


def wide(weight_type: str = "Q4_K", kd: int = 4) -> MmqConfig:
    """Raw bytes, 128 tokens x 64 rows: the seed's mmq_raw_wide_nt_kernel."""
    return MmqConfig(weight_type=weight_type, tokens_tile=128, kd=kd)


def r1(weight_type: str = "Q4_K", kd: int = 8) -> MmqConfig:
    """Expanded words in shared memory, 64 x 64: the seed's R1."""
    return MmqConfig("r1", weight_type, kd=kd)


def fast(weight_type: str = "Q4_K") -> MmqConfig:
    """The largest step past the seed with mma.sync: 128 x 128, two blocks an SM, warps of 32 tokens x 64
    rows, padded rows, magic rescaling, minima on the tensor cores. Blocks of 16-byte lines stay raw; the
    others are expanded once a block, since at the mma every one of their words costs two loads and a funnel
    shift; Q6_K with its scales."""
    variant = "raw" if weight_type in ALIGNED_TYPES else "folded" if weight_type == "Q6_K" else "r1"
    return MmqConfig(
        variant,
        weight_type,
        tokens_tile=128,
        rows_tile=128,
        kd=4,
        layout="padded",
        rescale="magic",
        minimum="tensor" if weight_type in WITH_MINIMUM else "fma",
        min_blocks=2,
    )


def stream(weight_type: str = "Q4_K") -> MmqConfig:
    """The fast kernel on a grid that fills the device once, with the last wave's tiles cut along k."""
    return replace(fast(weight_type), stream=True)


def large(weight_type: str = "Q4_K") -> MmqConfig:
    """Stream-k tiles of 128 x 256, warps of 64 tokens x 64 rows, a block an SM: raw blocks alone have the
    registers for it; the others as `stream`."""
    if weight_type not in ALIGNED_TYPES:
        return stream(weight_type)
    return replace(stream(weight_type), rows_tile=256, warps_tokens=2, min_blocks=1)
