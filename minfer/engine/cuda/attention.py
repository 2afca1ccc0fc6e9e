"""Attention over a layer's KV cache: which kernel for how many queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minfer.cuda import attention as attn
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.hopper_attention import HopperAttention
from minfer.engine.cuda.launches import kernel, launch_for
from minfer.engine.cuda.plan import FEW_TOKENS, MemoryPlan, decode_splits
from minfer.engine.cuda.routes import Route
from minfer.model.config import ModelConfig


class Attention:
    """Launches of a model on a route. tensor_map: (array, box) -> its tensor map, kept."""

    def __init__(
        self,
        device: Device,
        model: ModelConfig,
        route: Route,
        plan: MemoryPlan,
        tensor_map: Callable[[Any, tuple[int, int]], Any],
    ):
        self.device, self._scale = device, model.head_dim**-0.5
        heads = model.n_heads, model.n_kv_heads, model.head_dim
        self._prefill = attn.seed_steps(*heads)[route.attention]
        splits = decode_splits(model, plan.n_ctx, device.sms)
        self._decode = shapes = attn.DecodeAttentionConfig(*heads, splits, "f32")
        self._partial = device.empty(shapes.partial_shape, np.float32)
        self._statistics = device.empty(shapes.statistics_shape, np.float32)
        self._hopper = (
            HopperAttention(device, model, plan.chunk, tensor_map) if route.hopper_attention else None
        )

    def prepare(self, tokens: int, position: int) -> None:
        """Do what waits for the device, before a pass of so many tokens from a position on."""
        if self._hopper is not None and tokens > FEW_TOKENS:
            self._hopper.set_order(tokens, position, position + tokens)

    def one(self, q: Any, keys: Any, values: Any, out: Any, form: str, length: Any, pdl: bool) -> None:
        """One query, f32 (1, heads * head_dim), over as many rows of the caches as the array `length` says.

        Args:
            out: of the form "f32" or "q8". pdl: the launches overlap with those before them.
        """
        split = launch_for(attn.attention_decode, replace, (), self._decode, output=form, pdl=pdl)
        sums = self._partial, self._statistics
        split.on(self.device, q, keys, values, *sums, length, self._scale)
        combine = kernel(attn.attention_combine, split.config)
        self.device.launch(combine, split.config.combine_grid(), *sums, out, pdl=pdl)

    def many(self, q: Any, keys: Any, values: Any, out: Any, form: str, first: int, end: int) -> None:
        """Queries, f16 (tokens, heads * head_dim), from position `first` on, over the caches' first `end`
        rows; out: of the form "f16", "f32" or "pad40"."""
        if self._hopper is not None and form == "f16":
            self._hopper.launch(q, keys, values, out, first, end)
            return
        tiles = launch_for(attn.attention_prefill, replace, (len(q),), self._prefill, output=form)
        tiles.on(self.device, q, keys, values, out, len(q), first, end, self._scale)
