"""Seed 003, r7-r8: products on raw quantized bytes, and a prefetch for attention."""

from __future__ import annotations

from minfer.arithmetic.reference import figure
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.workloads import Attention
from minfer.campaign.workloads.attention import STEPS


def _prefetch() -> Prediction:
    sharing = figure("003", "gqa.sharing").value
    text = (
        f"{sharing:g} query heads read the same KV rows; the first brings a row into L2 and the others find "
        "it. There is no DRAM latency to hide: nothing to gain."
    )
    return Prediction(0.0, text)


PROBES = [
    Probe(
        name="fa-l2-prefetch",
        title="The next KV tile prefetched into L2",
        hypothesis="The single-buffered staging waits for DRAM; touching the next tile early hides it.",
        prediction=_prefetch,
        workload=Attention(),
        baseline=STEPS["P5.3"],
        variant=STEPS["P5.3, L2 prefetch"],
        labels=("no prefetch", "L2 prefetch"),
        mechanism="The tiles lie in L2 already: seven query heads share them.",
        retry="KV tiles that leave L2: much longer contexts, or less sharing of KV heads.",
    ),
]
