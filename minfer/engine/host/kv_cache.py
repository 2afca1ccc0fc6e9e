"""The host's KV cache."""

from __future__ import annotations

import math

import numpy as np

from minfer.engine.backend import KvDtype
from minfer.engine.errors import EngineError
from minfer.model.config import ModelConfig


class KvCache:
    """Keys (after RoPE) and values of every layer: arrays (layers, kv heads, context, head_dim).

    dtype float16 ("f16") or float32 ("f32"). Memory is taken as the context fills up. `context` is n_ctx
    rounded up to 16, so that rows of scores are whole vectors.
    """

    def __init__(self, config: ModelConfig, n_ctx: int, dtype: KvDtype):
        self.context = -(-n_ctx // 16) * 16
        self.halves = dtype == "f16"
        shape = config.n_layers, config.n_kv_heads, self.context, config.head_dim
        kind = np.dtype(np.float16 if self.halves else np.float32)
        try:
            self.keys, self.values = np.zeros(shape, kind), np.zeros(shape, kind)
        except MemoryError:
            size = 2 * math.prod(shape) * kind.itemsize
            raise EngineError(
                f"the KV cache of {n_ctx} tokens in {dtype} needs {size / 2**30:.1f} GiB of memory, "
                "which this machine does not have: use a smaller context"
            ) from None
