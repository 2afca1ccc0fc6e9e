"""Hopper's GEMMs on quantized blocks: what is asked for ahead, and how many tokens share a weight."""

from __future__ import annotations

from minfer.arithmetic.devices import DEVICES
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.workloads import W4A8, W4A16
from minfer.cuda.w4a8 import W4A8Config
from minfer.cuda.w4a16 import W4A16Config

SMS = DEVICES["h200"].sms
FEW = 512
DEEP, WIDE = W4A16Config("Q4_K", 128, 8, 2), W4A16Config("Q4_K", 128, 4, 4)
TOKENS_128, TOKENS_96 = W4A8Config(128, 5), W4A8Config(96, 6)


def _slots() -> Prediction:
    text = (
        f"{DEEP.stages} -> {WIDE.stages} k-tiles of activations in flight, {DEEP.slots} -> {WIDE.slots} "
        f"blocks of 256 weights a row; {DEEP.shared_bytes:,} -> {WIDE.shared_bytes:,} bytes of shared "
        "memory, one block an SM either way. Activations lie in L2, weights come from memory: what is far "
        "away should be asked for early. 1 to 5 % of each product."
    )
    return Prediction(None, text)


def _tokens() -> Prediction:
    rounds = []
    for config in (TOKENS_128, TOKENS_96):
        counts = []
        for case in W4A8().cases:
            across, down = config.tiles(case["nt"], case["od"] * (1 + case["gated"]))
            counts.append(-(-across * down // SMS) * config.tokens)
        rounds.append(counts)
    told = ", ".join(
        f"{case.label.split()[0]}: {before} -> {after}"
        for case, before, after in zip(W4A8().cases, *rounds, strict=True)
    )
    text = (
        f"Tokens that the slowest SM multiplies, a column of tiles behind the other: {told}. But a weight is "
        "unpacked for 96 tokens instead of 128, a third more often: where the rounds save less, it loses."
    )
    return Prediction(None, text)


PROBES = [
    Probe(
        name="w4a16-slots",
        title="W4A16 at 512 tokens: four blocks of weights in flight and half the activations",
        hypothesis="A short product has few k-tiles to hide a memory's latency in; weights should go ahead.",
        prediction=_slots,
        workload=W4A16(FEW),
        baseline=DEEP,
        variant=WIDE,
        labels=("8 stages, 2 slots", "4 stages, 4 slots"),
        mechanism="Blocks that come from memory are asked for two blocks earlier; activations come from L2.",
        retry="Activations that do not stay in L2.",
    ),
    Probe(
        name="w4a8-tokens",
        title="W4A8 tiles of 96 tokens instead of 128",
        hypothesis="Narrower tiles fill the last wave of SMs; unpacking more often costs as much.",
        prediction=_tokens,
        workload=W4A8(),
        baseline=TOKENS_128,
        variant=TOKENS_96,
        labels=("128 tokens", "96 tokens"),
        mechanism="Unpacking is paid a tile, whatever its tokens; integer products are short beside it.",
        retry="Unpacking that hides under fewer tokens' products.",
    ),
]
