"""Seed 002, r23 and what followed: the wall taken apart, and three attempts on attention's occupancy."""

from __future__ import annotations

from minfer.arithmetic.devices import DEVICES
from minfer.arithmetic.ledger import attention_ledger
from minfer.arithmetic.occupancy import blocks_per_sm
from minfer.arithmetic.reference import figure
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.statistics import upper_bound
from minfer.campaign.workloads import Attention
from minfer.campaign.workloads.attention import STEPS
from minfer.cuda.attention import AttentionConfig

FA_SHARE = figure("002", "wall.share.fa").value / 100
BOUND = upper_bound(FA_SHARE)


def _blocks(config: AttentionConfig) -> str:
    """Blocks an SM by shared memory and threads, on both GPUs."""
    found = [
        f"{key.upper()} {blocks_per_sm(DEVICES[key], config.threads, 128, config.shared_bytes).blocks}"
        for key in ("gb10", "h200")
    ]
    return " / ".join(found)


def _occupancy(before: str, after: str) -> Prediction:
    old, new = STEPS[before], STEPS[after]
    tiles = [attention_ledger(2048, config.tkv).kv_tiles for config in (old, new)]
    text = (
        f"{old.shared_bytes:,} -> {new.shared_bytes:,} bytes of shared memory: blocks an SM "
        f"{_blocks(old)} -> {_blocks(new)}; KV tiles a head {tiles[0]:,} -> {tiles[1]:,}, each paying its "
        f"fixed cost. Attention has {FA_SHARE:.1%} of the wall."
    )
    return Prediction(BOUND, text)


def _decomposition() -> Prediction:
    ours, theirs = (figure("002", f"gemm.us_per_gmac.{who}").value for who in ("ours", "llamacpp"))
    text = (
        f"f16 weights are 16 bits, raw Q4_K 4.5: a product that the B stream bounds could be 3.6 times "
        f"faster; the seed measured {ours / theirs:.2f} ({ours:g} against {theirs:g} us a GMAC)."
    )
    return Prediction(None, text)


PROBES = [
    Probe(
        name="r23-decomposition",
        title="The wall of a prefill, launch by launch",
        hypothesis="Every millisecond has a class of work; the byte width of the weights explains the GEMMs.",
        prediction=_decomposition,
        measure="wall",
        mechanism="See the record of the decomposition.",
        retry="After every change that moves the wall.",
    ),
    Probe(
        name="fa-tkv32",
        title="KV tiles of 32 instead of 64",
        hypothesis="Half the KV tile, twice the blocks an SM: latency is hidden.",
        prediction=lambda: _occupancy("P5.3", "TKV=32"),
        workload=Attention(),
        baseline=STEPS["P5.3"],
        variant=STEPS["TKV=32"],
        labels=("TKV=64", "TKV=32"),
        mechanism="Twice as many tiles pay the fixed cost of a tile (staging, barriers, rescale).",
        retry="A fixed cost of a tile that has been cut.",
    ),
    Probe(
        name="fa-tkv16",
        title="KV tiles of 16 instead of 32, softmax in registers",
        hypothesis="With the softmax in registers, a smaller tile raises occupancy again.",
        prediction=lambda: _occupancy("FAP2", "FAP2, TKV=16"),
        workload=Attention(),
        baseline=STEPS["FAP2"],
        variant=STEPS["FAP2, TKV=16"],
        labels=("TKV=32", "TKV=16"),
        mechanism="Registers bound the blocks an SM, not shared memory; the fixed cost doubles.",
        retry="Attention that is short of shared memory.",
    ),
    Probe(
        name="fa-register-softmax",
        title="Softmax in registers",
        hypothesis="Scores never leave the accumulators: no score tile in shared memory, no round trip.",
        prediction=lambda: _occupancy("P5.3", "FAP2"),
        workload=Attention(),
        baseline=STEPS["P5.3"],
        variant=STEPS["FAP2"],
        labels=("scores in shared memory", "in registers"),
        mechanism="The score tile's stores, loads and barriers are gone, and P is repacked in registers.",
        retry="Landed: the next step is a larger KV tile on the same kernel.",
    ),
]
