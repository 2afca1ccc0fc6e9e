"""Hopper's attention, step by step, beside cuDNN in the same process: device time in graphs, for the record.

burst: one graph of about 2 ms after 20 ms of rest; sustained: 40 ms of replays after 40 ms of the same, at
the clock that the card's power then allows. Interleaved in random order, medians; the outputs are what the
last timed launch left.
"""

from __future__ import annotations

import random
import statistics
import time

import pytest

from minfer.cuda import runtime
from minfer.cuda.attention import attention_hopper, hopper_steps

HEADS, KV_HEADS, HEAD_DIM = 28, 4, 128
SCALE = HEAD_DIM**-0.5
LENGTHS = (512, 2048, 8192)
ROUNDS = 5
STEPS = hopper_steps(HEADS, KV_HEADS, HEAD_DIM)


class Operands:
    """Torch tensors of one length, and what the attention of them is."""

    def __init__(self, torch, nt: int) -> None:
        generator = torch.Generator("cuda").manual_seed(nt)

        def normal(heads):
            return torch.randn(nt, heads * HEAD_DIM, device="cuda", generator=generator).half()

        self.torch, self.nt = torch, nt
        self.q, self.k, self.v = normal(HEADS), normal(KV_HEADS), normal(KV_HEADS)

    def heads(self, x, repeat: bool):
        """(1, heads, nt, head_dim), each kv head once for every query head that reads it if `repeat`."""
        shaped = x.view(1, self.nt, -1, HEAD_DIM).transpose(1, 2)
        return shaped.repeat_interleave(HEADS // shaped.shape[1], 1).contiguous() if repeat else shaped

    def wanted(self):
        """In f32, head by head."""
        torch, out = self.torch, self.torch.empty(self.nt, HEADS * HEAD_DIM, device="cuda")
        past = torch.full((self.nt, self.nt), float("-inf"), device="cuda").triu_(1)
        for head in range(HEADS):
            kv = slice(head * KV_HEADS // HEADS * HEAD_DIM, (head * KV_HEADS // HEADS + 1) * HEAD_DIM)
            own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            scores = self.q[:, own].float() @ self.k[:, kv].float().T * SCALE + past
            out[:, own] = torch.softmax(scores, -1) @ self.v[:, kv].float()
        return out

    def ours(self, config):
        """(launch on torch's current stream, its output)."""
        out = self.torch.full_like(self.q, float("nan"))
        arrays = {"q": self.q, "k": self.k, "v": self.v, "out": out}
        maps = [runtime.tensor_map(x, *config.boxes[name]) for name, x in arrays.items()]
        sms = runtime.device().sms
        order = runtime.to_device(config.successors(self.nt, 0, self.nt, sms))
        bound = runtime.load(attention_hopper(config)).prepare(
            config.grid(self.nt, sms), *maps, order, self.q, self.k, self.nt, 0, self.nt, SCALE
        )

        def launch():
            bound(stream=self.torch.cuda.current_stream().cuda_stream)

        return launch, out

    def cudnn(self, grouped: bool):
        """Torch's attention by cuDNN; with heads of K and V repeated beforehand, or grouped."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (self.heads(x, not grouped) for x in (self.q, self.k, self.v))

        def launch():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return self.torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=grouped
                )

        return launch


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
    operands = Operands(torch, nt)
    wanted = operands.wanted()

    def off(out) -> float:
        return float((out.float() - wanted).norm() / wanted.norm())

    launches = {"cuDNN": operands.cudnn(False), "cuDNN, grouped": operands.cudnn(True)}
    outputs = {}
    for step, config in STEPS.items():
        launches[step], outputs[step] = operands.ours(config)
    found = times(torch, launches, nt)
    for name, out in outputs.items():
        assert off(out) < 4e-4, name
    assert off(launches["cuDNN"]()[0].transpose(0, 1).reshape(nt, -1)) < 1e-3
    peer = {
        kind: min(found[name][kind] for name in ("cuDNN", "cuDNN, grouped"))
        for kind in ("burst", "sustained")
    }
    for name, figures in found.items():
        for kind, ms in figures.items():
            measure(f"attention {nt} tokens, {name}, {kind}: ms", ms)
            measure(f"attention {nt} tokens, {name}, {kind}: x cuDNN", round(peer[kind] / ms, 3))
