"""Hopper's attention in a prefill: its tensor maps, and the order of its tiles on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minfer.cuda.attention import HopperAttentionConfig, attention_hopper
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import launch_for
from minfer.model.config import ModelConfig


class HopperAttention:
    """Launches for chunks of up to `chunk` tokens. tensor_map: (array, box) -> its tensor map, kept."""

    def __init__(
        self,
        device: Device,
        model: ModelConfig,
        chunk: int,
        tensor_map: Callable[[Any, tuple[int, int]], Any],
    ):
        self.device, self._tensor_map = device, tensor_map
        self.config = HopperAttentionConfig(model.n_heads, model.n_kv_heads, model.head_dim)
        self._successors = device.empty(self.config.tiles(chunk), np.int32)
        self._lengths: tuple[int, int, int] | None = None  # whose order is on the device
        self._order: np.ndarray | None = None

    def set_order(self, nt: int, q_offset: int, kv_end: int) -> None:
        """Have the tiles' order for these lengths on the device. Waits for everything before, unless it is
        there: best called when nothing is under way."""
        lengths = nt, q_offset, kv_end
        if lengths != self._lengths:
            order = self.config.successors(*lengths, self.device.sms)
            if order is not self._order:  # short prompts of any length share one
                self._lengths = self._order = None  # until it is there
                self.device.write(self._successors[: len(order)], order)
            self._lengths, self._order = lengths, order

    def launch(self, q: Any, keys: Any, values: Any, out: Any, q_offset: int, kv_end: int) -> None:
        """Attention of q (tokens, heads * head_dim), the first one at position `q_offset`, over the first
        `kv_end` rows of a layer's caches; everything is f16."""
        config, lengths = self.config, (len(q), q_offset, kv_end)
        self.set_order(*lengths)
        attention = launch_for(attention_hopper, replace, (len(q), self.device.sms), config)
        scale = config.head_dim**-0.5
        arrays = {"q": q, "k": keys, "v": values, "out": out}
        maps = [self._tensor_map(array, config.boxes[name]) for name, array in arrays.items()]
        attention.on(self.device, *maps, self._successors, q, keys, *lengths, scale)
