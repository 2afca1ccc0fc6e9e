"""The way from the seed's R1 to the fastest config, one idea a step, and what else was tried on it.

`ladder(weight_type)` gives the configs in order, with what each was expected to do; `tried(weight_type)` the
variants of the last steps that were not taken, with the mechanism. Their times are those of the GPU tests
(`mmq ...: us/GMAC` in a record), not of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minfer.cuda.mmq.config import ALIGNED_TYPES, WEIGHT_TYPES, WITH_MINIMUM, MmqConfig
from minfer.cuda.mmq.variants import fast, large, narrow, r1, stream, wide


@dataclass(frozen=True)
class Step:
    """One step: a config and the mechanism by which it should be faster than the one that it changes, or was
    not; `base`: the name of that one, if it is not the step before."""

    name: str
    config: MmqConfig
    mechanism: str
    base: str = ""


def ladder(weight_type: str = "Q4_K") -> tuple[Step, ...]:
    """The steps of a weight type, the seed's first. Formats without minima lack the step that serves those;
    blocks that are not whole 16-byte lines leave the raw family at the tile of 128 x 128 (see `fast`)."""
    padded = replace(narrow(weight_type), layout="padded")
    magic = replace(padded, rescale="magic")
    padded_gains = "; B fragments of 16 rows by one ldmatrix; Q4_K's nibbles by a mask alone."
    if weight_type == "Q6_K":
        padded_gains = (
            ". What gains most on Q4_K does not apply: Q6_K's bytes are no fragments for ldmatrix, and a "
            "mask alone does not take them apart. Why it loses is not explained."
        )
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
            "Fragments without bank conflicts (40-byte rows conflict)" + padded_gains,
            base="raw narrow",
        ),
        Step(
            "magic rescale",
            magic,
            "Two multiply-adds an accumulator and chunk in place of a conversion, a multiply and a "
            "multiply-add: 8 instead of 12 instructions an mma, and none on the conversion unit.",
        ),
    ]
    if weight_type in WITH_MINIMUM:
        steps.append(
            Step(
                "minima on the tensor cores",
                replace(magic, minimum="tensor"),
                "One bf16 mma for four chunks in place of 4 multiply-adds an mma; the minima's f32 loads go.",
            )
        )
    tile = "raw" if weight_type in ALIGNED_TYPES else "expanded again, once for 128 tokens"
    whole = fast(weight_type)
    if weight_type == "Q6_K":
        whole = replace(whole, variant="r1")
    steps.append(
        Step(
            "128 x 128 tile",
            whole,
            f"Warps of 32 tokens x 64 rows: activations' loads serve 8 mma, not 4; the weights {tile}. "
            "With KD 4, so that a multiprocessor's shared memory holds two blocks.",
        )
    )
    if weight_type == "Q6_K":
        steps.append(
            Step(
                "folded scales",
                fast(weight_type),
                "Two products of depth 32 and 12 multiply-adds where two of depth 16 took 16; a byte is "
                "loaded once for all weights in it, not once for 16, and waits in no register.",
            )
        )
    steps.append(
        Step(
            "stream-k",
            stream(weight_type),
            "3584 rows and 2048 tokens are 448 tiles, 3.4 a multiprocessor, that take as long as 4: the last "
            "wave's tiles are cut along k, an equal share a block.",
        )
    )
    if large(weight_type) != stream(weight_type):
        steps.append(
            Step(
                "128 x 256 tile",
                large(weight_type),
                "Warps of 64 tokens x 64 rows: half of the weights' unpacking an mma. One block a "
                "multiprocessor, which nobody relieves where tiles end: in a grid that stays, they follow "
                "each other at once.",
            )
        )
    return tuple(steps)


def tried(weight_type: str = "Q4_K") -> tuple[Step, ...]:
    """Variants of the tile of 128 x 128 that are not taken (Q4_K's: the other types' follow it)."""
    if weight_type != "Q4_K":
        return ()
    best = fast(weight_type)
    return (
        Step(
            "minima by multiply-adds",
            replace(best, minimum="fma"),
            "4 more multiply-adds and a load an mma: the tensor cores had the time, the issue slots had not.",
        ),
        Step(
            "words (R1)",
            replace(best, variant="r1"),
            "A mask an mma is cheaper than storing and loading twice the bytes of expanded words.",
        ),
        Step(
            "one block a multiprocessor",
            replace(best, min_blocks=1),
            "More registers, but nobody multiplies while all 8 warps stand at the barrier.",
        ),
        Step(
            "3 stages",
            replace(best, stages=3),
            "Two blocks of them still fit, but what is copied was there in time with 2: what is left is the "
            "arithmetic of a longer ring.",
        ),
        Step(
            "4 stages, one block",
            replace(best, stages=4, min_blocks=1),
            "Their shared memory leaves room for one block, which nobody relieves at its barrier.",
        ),
        Step(
            "16 warps, one block",
            replace(best, warps=16, unroll=4, min_blocks=1),
            "Warps of 32 x 32: activations' loads serve 4 mma, and one barrier holds all 16.",
        ),
        Step(
            "warps of 64 x 32",
            replace(best, warps_tokens=2),
            "As many fragments in all, but 4 rows of A and 4 of B where 2 and 8 share B's unpacking better.",
        ),
        Step(
            "128 x 64 tile, three blocks",
            replace(best, rows_tile=64, min_blocks=3),
            "Three barriers out of step, but activations' loads serve half as many mma.",
        ),
        Step(
            "128 x 256 tile, whole tiles",
            replace(large(weight_type), stream=False),
            "Without stream-k: half as many tiles leave more processors idle, and all wait while their next "
            "block begins.",
        ),
    )


def shipped_configs() -> list[MmqConfig]:
    """The seed's variants at both depths and every step of the ladder for what a Q4_K_M file holds; for the
    other types the seed's variants once, and the fast ones."""
    both = [make(name, kd) for name in ("Q4_K", "Q6_K") for make in (r1, narrow, wide) for kd in (4, 8)]
    others = [make(name) for name in WEIGHT_TYPES[2:] for make in (r1, narrow, wide)]
    steps = [step.config for name in ("Q4_K", "Q6_K") for step in ladder(name)[5:]]
    largest = [make(name) for name in WEIGHT_TYPES for make in (fast, stream, large)]
    return list(dict.fromkeys(both + others + [step.config for step in ladder()] + steps + largest))
