"""The decode GEMV: do Q6_K blocks pay that are repacked when a model is loaded?"""

from __future__ import annotations

from minfer.arithmetic.devices import DEVICES
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.workloads import Gemv
from minfer.cuda.gemv import PLANES_7B, GemvConfig

BLOCK_LOADS, PLANE_LOADS = 27, 11
"""A lane's loads from shared memory for its part of a Q6_K block: words shifted into place, or 16 bytes."""
DOWN, HEAD = Gemv.of("down", "Q6_K"), Gemv.of("lm_head", "Q6_K")


def _from_blocks(workload: Gemv) -> GemvConfig:
    """What the engine takes."""
    return GemvConfig.for_shape(workload.format, workload.dim, workload.od, pdl=True)


def _planes(workload: Gemv, variant: GemvConfig) -> Prediction:
    before, after = _from_blocks(workload).row_bytes, variant.row_bytes
    least = 1e6 * workload.od * after / DEVICES["h200"].bandwidth
    lanes = workload.od * workload.dim // 256 * variant.dot.lanes
    text = (
        f"{before:,} -> {after:,} bytes a row: the memory needs {least:.1f} us either way. A lane's loads "
        f"from shared memory {BLOCK_LOADS} -> {PLANE_LOADS} a block, {lanes // 32 / 132:,.0f} warps' worth "
        "of blocks an SM. Who waits for memory gains nothing; who unpacks too late gains the difference."
    )
    return Prediction(None, text)


PROBES = [
    Probe(
        name="gemv-planes-down",
        title="down in Q6_K: blocks in planes instead of as they lie in the file",
        hypothesis="74 blocks a row leave warps idle at its end, so unpacking shows: planes save some of it.",
        prediction=lambda: _planes(DOWN, PLANES_7B[0]),
        workload=DOWN,
        baseline=_from_blocks(DOWN),
        variant=PLANES_7B[0],
        labels=("blocks", "planes"),
        mechanism="Loads of 16 bytes without conflicts in place of words that are shifted into place.",
        retry="A token kernel whose time is a product's unpacking, not its exchanges.",
    ),
    Probe(
        name="gemv-planes-lm-head",
        title="lm_head in Q6_K: blocks in planes instead of as they lie in the file",
        hypothesis="A long product streams at the memory's speed: unpacking hides, planes gain nothing.",
        prediction=lambda: _planes(HEAD, PLANES_7B[1]),
        workload=HEAD,
        baseline=_from_blocks(HEAD),
        variant=PLANES_7B[1],
        labels=("blocks", "planes"),
        mechanism="The memory's stream bounds it, whatever the layout.",
        retry="A device whose memory is faster beside its shared memory.",
    ),
]
