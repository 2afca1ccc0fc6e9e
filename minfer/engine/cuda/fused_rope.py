"""The product with q, k and v of a prefill that leaves as rotated queries and rows of the KV cache."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from minfer.cuda.gemm_hopper import GemmHopperConfig, Heads, choose, make_gemm_hopper
from minfer.cuda.kernel import ConfigRefused
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import KEPT, launch_for
from minfer.engine.cuda.products import Products
from minfer.engine.cuda.weights import Stack
from minfer.model.config import ModelConfig


def rotated_heads(model: ModelConfig) -> Heads | None:
    """What the product does to a model's heads; None for a model whose heads it cannot take: normed, rotated
    in part, or of other sizes."""
    if model.has_qk_norm or model.rope.dimension_count != model.head_dim:
        return None
    shape = model.n_heads, model.n_kv_heads, model.head_dim
    try:
        return Heads(*shape, model.rope.interleaved, model.has_qkv_bias)
    except ConfigRefused:
        return None


class FusedRope:
    """Holds a product back until the KV cache that it writes to is known, and launches it. table: of angles,
    as `rope_table` makes it."""

    def __init__(self, device: Device, heads: Heads, products: Products, table: Any):
        self.device, self.heads, self._products, self._table = device, heads, products, table
        self._waiting: tuple[Any, Stack] | None = None

    def takes(self, out: Activations, stack: Stack) -> bool:
        """Whether a product is that of q, k and v, made by Hopper's GEMM with a tile that can rotate. Another
        tile costs more time than the pass over q, k and v that it saves (measured on an H200)."""
        tokens, whole = len(out), stack.rows == self.heads.width
        if out.storage.role != "qkv" or not whole or not self._products.takes_half(tokens, stack):
            return False
        return _chosen(tokens, stack.rows, stack.columns, self.device.sms).can_rotate

    def hold(self, a: Any, stack: Stack) -> None:
        """Keep a product for `launch`; a: f16 (tokens, columns)."""
        self._waiting = a, stack

    def drop(self) -> None:
        """Forget a product of a pass that was interrupted."""
        self._waiting = None

    def launch(self, q: Any, keys: Any, values: Any, position: int) -> bool:
        """Make the product that waits, if one does: the queries into q, f16 (tokens, heads * head_dim), keys
        and values into the rows of their caches from `position` on."""
        if self._waiting is None:
            return False
        (a, stack), self._waiting = self._waiting, None
        nt, rows, columns, sms = len(a), stack.rows, stack.columns, self.device.sms
        gemm = launch_for(make_gemm_hopper, _rotating, (nt, rows, sms), nt, rows, columns, sms, self.heads)
        bias = (stack.bias,) if self.heads.bias else ()
        sizes = nt, rows, columns, gemm.config.group(nt, rows)
        targets = *bias, self._table, q, keys, values
        self._products.launch_hopper(gemm, a, stack, *targets, *sizes, position)
        return True


_chosen = lru_cache(KEPT)(choose)


def _rotating(tokens: int, rows: int, columns: int, sms: int, heads: Heads) -> GemmHopperConfig:
    """The product's own tile, with the epilogue that rotates."""
    return replace(_chosen(tokens, rows, columns, sms), epilogue="rope", heads=heads)
