"""The way from the seed's R1 to the fast config, one change a step, with what each was expected to do.

`ladder(weight_type)` gives the configs in order. Where a step's prediction failed, its record says so: the
figures are those of the GPU tests (`mmq ...: us/GMAC`), not of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minfer.cuda.mmq.config import (
    ALIGNED_TYPES,
    WEIGHT_TYPES,
    WITH_MINIMUM,
    MmqConfig,
    fast,
    narrow,
    r1,
    wide,
)


@dataclass(frozen=True)
class Step:
    """One step: a config and the mechanism by which it should be faster than the one before."""

    name: str
    config: MmqConfig
    prediction: str


def ladder(weight_type: str = "Q4_K") -> tuple[Step, ...]:
    """The steps of a weight type, the seed's first. Formats without minima lack the step that serves those;
    blocks that are not whole 16-byte lines leave the raw family at the last step (see `fast`)."""
    padded = replace(narrow(weight_type), layout="padded")
    magic = replace(padded, rescale="magic")
    steps = [
        Step("R1", r1(weight_type), "The base: words expanded between two barriers."),
        Step(
            "raw narrow",
            narrow(weight_type),
            "No arithmetic before the barrier; nibbles are masked beside the mma. Costs two loads and a "
            "funnel shift a word where blocks are only 2-byte aligned.",
        ),
        Step(
            "raw wide",
            wide(weight_type, 8),
            "Weights are unpacked for twice the tokens; half as many weight bytes from L2 (no gain: they "
            "were never the limit).",
        ),
        Step(
            "padded rows",
            padded,
            "Fragments without bank conflicts (40-byte rows conflict); B fragments of 16 rows by one "
            "ldmatrix; Q4_K's nibbles by a mask alone.",
        ),
        Step(
            "magic rescale",
            magic,
            "Two multiply-adds an accumulator and chunk in place of a conversion, a multiply and a "
            "multiply-add: 8 instead of 12 instructions an mma, and none on the conversion unit.",
        ),
    ]
    if weight_type in WITH_MINIMUM:
        tensor = replace(magic, minimum="tensor")
        steps.append(
            Step(
                "minima on the tensor cores",
                tensor,
                "One bf16 mma for four chunks in place of 4 multiply-adds an mma; the minima's f32 loads go.",
            )
        )
    tile = "raw" if weight_type in ALIGNED_TYPES else "expanded again, once for 128 tokens"
    steps.append(
        Step(
            "128 x 128 tile",
            fast(weight_type),
            f"Warps of 32 tokens x 64 rows: activations' loads serve 8 mma, not 4; the weights {tile}. About "
            "18 instructions an mma of Q4_K, of which 8 are the rescaling.",
        )
    )
    return tuple(steps)


def shipped_configs() -> list[MmqConfig]:
    """The seed's variants at both depths and every step of the ladder for what a Q4_K_M file holds; for the
    other types the seed's variants once, and the fast ones."""
    both = [make(name, kd) for name in ("Q4_K", "Q6_K") for make in (r1, narrow, wide) for kd in (4, 8)]
    others = [make(name) for name in WEIGHT_TYPES[2:] for make in (r1, narrow, wide)]
    steps = [step.config for step in ladder("Q4_K")]
    return list(dict.fromkeys(both + others + steps + [fast(name) for name in WEIGHT_TYPES]))
