"""The kernel for a whole token: is it worth it to warm L2 with what a phase reads besides weights?"""

from __future__ import annotations

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.gates import LikeSeparate, Parity, SameOutputs, SameTokens
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.statistics import upper_bound
from minfer.campaign.workloads import Rung, Token

GATES = (Parity(), SameOutputs(), SameTokens(), LikeSeparate())
TRIP_US, TOKEN_US = 0.7, 1290.0
"""A read that misses L2 on an H200 whose memory is busy, more or less, and a token of the 7B."""


def _prefetch() -> Prediction:
    trips = 3 * QWEN25_7B.layers
    share = trips * TRIP_US / TOKEN_US
    text = (
        "A layer's gains (twice), biases, angles and cache rows are read by phases that wait for each other: "
        f"{trips} trips to a busy memory of some {TRIP_US} us a token of {TOKEN_US:,.0f}, {share:.1%}, are "
        "trips to L2 if the stream asked for them before."
    )
    return Prediction(upper_bound(share), text)


def _ahead() -> Prediction:
    text = (
        "8 tiles of 32 KB a block are 35 MB of 132 blocks: they fit L2; memory works while a "
        "block attends or waits with a full ring. Two tiles in flight keep the ring from being full: +1 % "
        "of a token at most."
    )
    return Prediction(0.01, text)


PROBES = [
    Probe(
        name="token-prefetch",
        title="One kernel a token: what phases read besides weights is brought into L2 before",
        hypothesis="Phases wait for each other: a gain or a bias that comes from memory stops all blocks.",
        prediction=_prefetch,
        workload=Token(),
        baseline=Rung.of(prefetch=False),
        variant=Rung(),
        labels=("read when needed", "brought into L2"),
        gates=GATES,
        mechanism="What a phase reads lies in L2 when it begins: the trip to memory was made before.",
        retry="Phases that read nothing but weights, or read the rest a phase ahead.",
    ),
    Probe(
        name="token-ahead",
        title="One kernel a token: tiles beyond the ring are brought into L2 in the gaps",
        hypothesis="A full ring stops the stream of weights; L2 has room for what comes next.",
        prediction=_ahead,
        workload=Token(),
        baseline=Rung.of(ahead=0),
        variant=Rung(),
        labels=("the ring alone", "8 tiles into L2"),
        gates=GATES,
        mechanism="The stream goes on in the gaps of the exchanges and of the attention.",
        retry="A ring that is full for longer: faster memory, or longer gaps.",
    ),
]
