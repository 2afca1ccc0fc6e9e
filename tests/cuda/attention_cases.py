"""Launches of the attention kernels with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.attention import AttentionConfig, attention_prefill
from tests.cuda.parity import Case, poisoned

DTYPES = {"f16": np.float16, "f32": np.float32}


def prefill_inputs(nt, kv_end, heads, kv_heads, head_dim, bias=0.0, seed=0):
    """(q f32, k f16, v f16). `bias` is what Qwen2's key and query biases are: one large component that all rows share,
    which puts scores past f16's range."""
    rng = np.random.default_rng(seed + nt * 100 + kv_end)
    q = rng.normal(size=(nt, heads, head_dim)).astype(np.float32)
    k = rng.normal(size=(kv_end, kv_heads, head_dim))
    v = rng.normal(size=(kv_end, kv_heads, head_dim))
    if bias:
        q[..., 3] += bias
        k[..., 3] += bias
    return q.astype(np.float16).astype(np.float32), k.astype(np.float16), v.astype(np.float16)


def prefill_case(config: AttentionConfig, nt: int, kv_end: int | None = None, bias: float = 0.0, offset=None) -> Case:
    """`nt` queries at the end of `kv_end` stored rows (default: nt); the cache is larger, and NaN from kv_end on."""
    kv_end = nt if kv_end is None else kv_end
    offset = kv_end - nt if offset is None else offset
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    q, k, v = prefill_inputs(nt, kv_end, heads, kv_heads, head_dim, bias)
    caches = []
    for rows in (k, v):
        cache = np.full((kv_end + 5, kv_heads * head_dim), np.nan, np.float16)
        cache[:kv_end] = rows.reshape(kv_end, -1)
        caches.append(cache)
    scale = head_dim**-0.5
    wanted = reference.attention(q, k, v, offset, scale).reshape(nt, -1)
    arguments = {
        "q": q.reshape(nt, -1).astype(DTYPES[config.query]),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "out": poisoned((nt, heads * head_dim), DTYPES[config.output]),
        "nt": nt,
        "q_offset": offset,
        "kv_end": kv_end,
        "scale": scale,
    }
    # P and V are f16: half an ulp of each weight, over weights that sum to 1 and values of a few units.
    return Case(
        attention_prefill(config), config.grid(nt), arguments, {"out": wanted}, 2e-3, 2e-3, f"nt={nt} kv={kv_end}"
    )
