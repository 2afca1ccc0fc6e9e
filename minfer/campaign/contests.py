"""What is compared with torch's kernels: the 7B's products on f16 weights and on blocks, and its attention.

A contest holds both sides' calls, ready to run, on operands that both read. Weights take turns, so that they
come from memory and not from L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minfer.campaign.against import ATTENTION, HEAD_DIM, HEADS, KINDS, KV_HEADS, SHAPES

COLD_BYTES = 160e6  # of weights that take turns: more than any L2 holds
GRAPH_S = 1.5e-3  # of work in a graph
BLOCKS = (*(("Q4_K", name) for name in SHAPES), ("Q6_K", "down"), ("Q4_K+Q6_K", "q+k+v"))
"""The products that a Q4_K_M file has blocks for, and W4A16 reads; the last one's v is in another format."""
SCALES = {"Q4_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets of a block's f16 scales."""

Call = Callable[[], Any]
"""Starts work on torch's current stream; gives the tensor that it fills."""


@dataclass(frozen=True)
class Contest:
    """One comparison. `product` to `weights` are as in `minfer.campaign.against.Comparison`.

    Attributes:
        ours: calls that take turns; theirs: the other library's by the name of the way, as many each.
        error: relative error of what the last of a side's calls left.
    """

    product: str
    nt: int
    od: int
    depth: int
    config: str
    weights: str
    ours: Sequence[Call]
    theirs: dict[str, Sequence[Call]]
    error: Callable[[Any], float]

    @property
    def launches(self) -> int:
        """Of a graph that takes about GRAPH_S at 700 TFLOPS, every turn as often as the others."""
        return launches(self.nt, self.od, self.depth, len(self.ours))


def contests(tokens: Sequence[int], kinds: Collection[str] = KINDS) -> Iterator[Callable[[Any], Contest]]:
    """All of these kinds at every number of tokens: functions of the module torch."""
    for nt in tokens:
        for name, (od, depth) in SHAPES.items():
            if "F16" in kinds:
                yield partial(f16_product, name=name, nt=nt, od=od, depth=depth)
        for format, name in BLOCKS:
            od, depth = SHAPES[name]
            if format in kinds:
                yield partial(block_product, format=format, name=name, nt=nt, od=od, depth=depth)
        if ATTENTION in kinds:
            yield partial(attention, nt=nt)


def copies(nbytes: float) -> int:
    """Matrices of so many bytes that take turns."""
    return max(1, math.ceil(COLD_BYTES / nbytes))


def launches(nt: int, od: int, depth: int, turns: int, flops: float = 7e14) -> int:
    """Launches of a graph: so many that it takes about GRAPH_S, and every matrix its turn."""
    return turns * math.ceil(max(1.0, GRAPH_S * flops / (2.0 * nt * od * depth)) / turns)


def f16_product(torch: Any, name: str, nt: int, od: int, depth: int) -> Contest:
    """Hopper's GEMM and cuBLAS on the same f16 weights."""
    from minfer.cuda import runtime
    from minfer.cuda.gemm_hopper import choose, make_gemm_hopper, split_workspace
    from minfer.engine.cuda.devices import GpuDevice
    from minfer.engine.cuda.seats import device_parts, device_seats

    sms = runtime.device().sms
    config = choose(nt, od, depth, sms)
    loaded = runtime.load(make_gemm_hopper(config))
    a, ours, theirs = _operands(torch, nt, od, depth)
    device = GpuDevice()
    shared = (device_seats(device),) if config.pdl else ()
    shared += device_parts(device, split_workspace) if config.split_k else ()
    weights = [
        torch.randn(od, depth, device="cuda", dtype=torch.float16) for _ in range(copies(2 * od * depth))
    ]

    def bind(b: Any) -> Call:
        arrays = zip("abc", (a, b, ours), strict=True)
        maps = [runtime.tensor_map(array, *config.boxes[which]) for which, array in arrays]
        sizes = nt, od, depth, config.group(nt, od)
        bound = loaded.prepare(config.grid(nt, od, sms), *maps, *sizes, *shared, pdl=config.pdl)
        return _on_torchs_stream(torch, bound, ours)

    calls = [bind(b) for b in weights]
    peers = {"cuBLAS": _matmuls(torch, a, weights, theirs)}
    return Contest(name, nt, od, depth, str(config), "F16", calls, peers, _error(a, weights[-1]))


def block_product(torch: Any, format: str, name: str, nt: int, od: int, depth: int) -> Contest:
    """W4A16 on blocks, of two formats those of q and k and those of v, and cuBLAS on an f16 copy of them."""
    from minfer.cuda import runtime
    from minfer.cuda.dequantize import DequantizeConfig, dequantize
    from minfer.cuda.w4a16 import PAIR, choose, choose_pair, split_workspace, w4a16
    from minfer.engine.cuda.devices import GpuDevice
    from minfer.engine.cuda.seats import device_parts

    sms, kv = runtime.device().sms, KV_HEADS * HEAD_DIM
    paired, parts = format == PAIR, format.split("+")
    rows = (od - kv, kv) if paired else (od,)
    left = rows[0] if paired else 0
    if paired:
        config = choose_pair(nt, rows, depth, sms, width=od, left=left)
    else:
        config = choose(format, nt, od, depth, sms, width=od)
    config.check(nt, od, depth, od, left)
    loaded, boxes = runtime.load(w4a16(config)), config.boxes
    a, ours, theirs = _operands(torch, nt, od, depth)
    shared = device_parts(GpuDevice(), split_workspace) if config.split_k > 1 else ()
    other = {"a_other": a} if config.other_tokens else {}

    def draw() -> tuple[Any, ...]:
        return tuple(random_blocks(torch, part, n, depth) for part, n in zip(parts, rows, strict=True))

    first = draw()
    blocks = [first, *(draw() for _ in range(copies(sum(packed.nbytes for packed in first)) - 1))]
    weights = [torch.empty(od, depth, device="cuda", dtype=torch.float16) for _ in blocks]
    torch.cuda.synchronize()
    for each, half in zip(blocks, weights, strict=True):
        for part, packed, target in zip(parts, each, half.split(rows), strict=True):
            expand = dequantize(DequantizeConfig(part, depth))
            runtime.launch(expand, expand.config.grid(len(packed)), packed, target)
    runtime.device().synchronize()

    def bind(each: tuple[Any, ...]) -> Call:
        arrays = {"a": a} | dict(zip(("w", "other"), each, strict=False)) | other | {"c": ours}
        seen = [runtime.tensor_map(x, *boxes[key]) if key in boxes else x for key, x in arrays.items()]
        sizes = nt, rows[0], depth, 0, od, config.group(nt), *((kv, left) if paired else ())
        grid = config.grid(nt, rows[0], sms, *rows[1:])
        return _on_torchs_stream(torch, loaded.prepare(grid, *seen, *sizes, *shared, pdl=config.pdl), ours)

    calls = [bind(each) for each in blocks]
    peers = {"cuBLAS": _matmuls(torch, a, weights, theirs)}
    return Contest(name, nt, od, depth, str(config), format, calls, peers, _error(a, weights[-1]))


def random_blocks(torch: Any, format: str, rows: int, columns: int) -> Any:
    """Random blocks as they lie in a file, uint8 (rows, bytes): every bit random, but scales of ordinary
    size."""
    from minfer.cuda.blocks import BLOCKS as LAYOUTS

    layout = LAYOUTS[format]
    shape = rows, columns // layout.weights, layout.size
    blocks = torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8)
    for offset in SCALES[format]:
        scales = torch.empty(*shape[:2], 1, device="cuda").uniform_(0.001, 0.01).half()
        blocks[..., offset : offset + 2] = scales.view(torch.uint8)
    return blocks.reshape(rows, -1)


def attention(torch: Any, nt: int) -> Contest:
    """Hopper's attention and cuDNN's, causal, each query head with the kv head of its group."""
    from minfer.cuda.attention import HopperAttentionConfig

    operands = AttentionOperands(torch, nt)
    config = HopperAttentionConfig(HEADS, KV_HEADS, HEAD_DIM)
    ours = operands.ours(config)
    peers = {"cuDNN": [operands.cudnn(False)], "cuDNN, grouped": [operands.cudnn(True)]}
    sizes = nt, HEADS * HEAD_DIM, nt + 1
    return Contest(ATTENTION, *sizes, str(config), "", [ours], peers, operands.error)


class AttentionOperands:
    """Random f16 tensors of one length, and what the attention of them is."""

    def __init__(self, torch: Any, nt: int) -> None:
        generator = torch.Generator("cuda").manual_seed(nt)

        def normal(heads: int) -> Any:
            return torch.randn(nt, heads * HEAD_DIM, device="cuda", generator=generator).half()

        self.torch, self.nt = torch, nt
        self.q, self.k, self.v = normal(HEADS), normal(KV_HEADS), normal(KV_HEADS)
        self._wanted: Any = None

    def ours(self, config: Any) -> Call:
        """A call of Hopper's attention."""
        from minfer.cuda import runtime
        from minfer.cuda.attention import attention_hopper

        out = self.torch.full_like(self.q, float("nan"))
        arrays = {"q": self.q, "k": self.k, "v": self.v, "out": out}
        maps = [runtime.tensor_map(x, *config.boxes[name]) for name, x in arrays.items()]
        sms = runtime.device().sms
        order = runtime.to_device(config.successors(self.nt, 0, self.nt, sms))
        bound = runtime.load(attention_hopper(config)).prepare(
            config.grid(self.nt, sms), *maps, order, self.q, self.k, self.nt, 0, self.nt, HEAD_DIM**-0.5
        )
        return _on_torchs_stream(self.torch, bound, out)

    def cudnn(self, grouped: bool) -> Call:
        """A call of torch's attention by cuDNN: heads of K and V repeated beforehand, or grouped."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attend = self.torch.nn.functional.scaled_dot_product_attention
        q, k, v = (self._heads(x, not grouped) for x in (self.q, self.k, self.v))

        def call() -> Any:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return attend(q, k, v, is_causal=True, enable_gqa=grouped)

        return call

    def error(self, out: Any) -> float:
        """Relative error of (nt, heads * head_dim), or of torch's (1, heads, nt, head_dim)."""
        if self._wanted is None:
            self._wanted = self._exact()
        if out.dim() == 4:
            out = out[0].transpose(0, 1).reshape(self.nt, -1)
        return float((out.float() - self._wanted).norm() / self._wanted.norm())

    def _heads(self, x: Any, repeat: bool) -> Any:
        """(1, heads, nt, head_dim), each kv head once for every query head that reads it if `repeat`."""
        shaped = x.view(1, self.nt, -1, HEAD_DIM).transpose(1, 2)
        return shaped.repeat_interleave(HEADS // shaped.shape[1], 1).contiguous() if repeat else shaped

    def _exact(self) -> Any:
        """In f32, head by head."""
        torch, out = self.torch, self.torch.empty(self.nt, HEADS * HEAD_DIM, device="cuda")
        past = torch.full((self.nt, self.nt), float("-inf"), device="cuda").triu_(1)
        for head in range(HEADS):
            kv = slice(head * KV_HEADS // HEADS * HEAD_DIM, (head * KV_HEADS // HEADS + 1) * HEAD_DIM)
            own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            scores = self.q[:, own].float() @ self.k[:, kv].float().T * HEAD_DIM**-0.5 + past
            out[:, own] = torch.softmax(scores, -1) @ self.v[:, kv].float()
        return out


def _operands(torch: Any, nt: int, od: int, depth: int) -> tuple[Any, Any, Any]:
    """Activations, and an output for each side."""
    a = torch.randn(nt, depth, device="cuda", dtype=torch.float16)
    return a, *(torch.empty(nt, od, device="cuda", dtype=torch.float16) for _ in range(2))


def _matmuls(torch: Any, a: Any, weights: Sequence[Any], out: Any) -> list[Call]:
    return [partial(torch.matmul, a, b.T, out=out) for b in weights]


def _error(a: Any, b: Any) -> Callable[[Any], float]:
    wanted = a.float() @ b.float().T
    return lambda out: float((out.float() - wanted).norm() / wanted.norm())


def _on_torchs_stream(torch: Any, bound: Callable, out: Any) -> Call:
    def call() -> Any:
        bound(stream=torch.cuda.current_stream().cuda_stream)
        return out

    return call
