"""Hopper's attention, step by step, beside cuDNN in the same process: device time in graphs, for the record.

burst: one graph of about 2 ms after 20 ms of rest; sustained: 40 ms of replays after 40 ms of the same, at
the clock that the card's power then allows. Interleaved in random order, medians; afterwards every
kernel's result is checked, on NaN.
"""

from __future__ import annotations

import random
import statistics
import time

import pytest

from minfer.campaign.against import HEAD_DIM, HEADS, KV_HEADS
from minfer.campaign.contests import AttentionOperands
from minfer.cuda.attention import hopper_steps

LENGTHS = (512, 2048, 8192)
ROUNDS = 5
STEPS = hopper_steps(HEADS, KV_HEADS, HEAD_DIM)


def graph_of(torch, launch, count: int):
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def milliseconds(torch, graph, replays: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays


def times(torch, launches: dict, nt: int) -> dict[str, dict[str, float]]:
    """Name -> burst and sustained milliseconds of one launch."""
    count = int(min(40, max(2, 20 * (2048 / nt) ** 2)))
    graphs = {name: graph_of(torch, launch, count) for name, launch in launches.items()}
    burst, sustained = ({name: [] for name in graphs} for _ in range(2))
    order = list(graphs)
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            time.sleep(0.02)
            burst[name].append(milliseconds(torch, graphs[name], 1) / count)
    for _ in range(3):
        random.shuffle(order)
        for name in order:
            replays = max(1, round(40 / (statistics.median(burst[name]) * count)))
            milliseconds(torch, graphs[name], replays)
            sustained[name].append(milliseconds(torch, graphs[name], replays) / count)
    return {
        name: {
            "burst": round(statistics.median(burst[name]), 5),
            "sustained": round(statistics.median(sustained[name]), 5),
        }
        for name in graphs
    }


@pytest.mark.parametrize("nt", LENGTHS)
def test_beside_cudnn(nt, measure, hopper):
    torch = pytest.importorskip("torch")
    operands = AttentionOperands(torch, nt)
    peers = {"cuDNN": operands.cudnn(False), "cuDNN, grouped": operands.cudnn(True)}
    steps = {step: operands.ours(config) for step, config in STEPS.items()}
    found = times(torch, peers | steps, nt)
    for name, launch in steps.items():
        launch().fill_(float("nan"))
        assert operands.error(launch()) < 4e-4, name
    for name, launch in peers.items():
        assert operands.error(launch()) < 1e-3, name
    peer = {kind: min(found[name][kind] for name in peers) for kind in ("burst", "sustained")}
    for name, figures in found.items():
        for kind, ms in figures.items():
            measure(f"attention {nt} tokens, {name}, {kind}: ms", ms)
            measure(f"attention {nt} tokens, {name}, {kind}: x cuDNN", round(peer[kind] / ms, 3))
