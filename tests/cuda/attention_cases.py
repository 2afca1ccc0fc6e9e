"""Launches of the attention kernels with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.attention import (
    AttentionConfig,
    DecodeAttentionConfig,
    attention_combine,
    attention_decode,
    attention_prefill,
)
from tests.cuda.elementwise_cases import output_for
from tests.cuda.parity import Case, poisoned

DTYPES = {"f16": np.float16, "f32": np.float32}
DECODE_TOLERANCE = {"f32": (1e-4, 2e-5), "f16": (1e-3, 2e-5), "q8": (0.0, 0.0)}


def prefill_inputs(nt, kv_end, heads, kv_heads, head_dim, bias=0.0, seed=0):
    """(q f32, k f16, v f16). `bias` is what Qwen2's key and query biases are: one large component that all
    rows share, which puts scores past f16's range."""
    rng = np.random.default_rng(seed + nt * 100 + kv_end)
    q = rng.normal(size=(nt, heads, head_dim)).astype(np.float32)
    k = rng.normal(size=(kv_end, kv_heads, head_dim))
    v = rng.normal(size=(kv_end, kv_heads, head_dim))
    if bias:
        q[..., 3] += bias
        k[..., 3] += bias
    return q.astype(np.float16).astype(np.float32), k.astype(np.float16), v.astype(np.float16)


def prefill_case(
    config: AttentionConfig, nt: int, kv_end: int | None = None, bias: float = 0.0, offset=None
) -> Case:
    """`nt` queries at the end of `kv_end` stored rows (default: nt); the cache is larger, and NaN from
    kv_end on."""
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
    # P and V are f16: half an ulp of each weight, over weights that sum to 1 and values of a few units. And
    # tensor cores cut an f32 accumulator off at every k16 step, so that large scores are off by up to an ulp
    # a step; that error in the exponent is the relative error of two weights that compete.
    largest = np.abs(q).max() * np.abs(k.astype(np.float32)).max()  # the biased component alone
    score_error = float(head_dim / 16 * np.spacing(np.float32(largest)) * scale)
    return Case(
        attention_prefill(config),
        config.grid(nt),
        arguments,
        {"out": wanted},
        2e-3,
        2e-3 + (2 * score_error * float(np.abs(v).max()) if bias else 0.0),
        f"nt={nt} kv={kv_end}",
    )


def decode_cases(config: DecodeAttentionConfig, length: int, bias: float = 0.0) -> list[Case]:
    """The split kernel, then the combine kernel on its results (run them in order)."""
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    q, k, v = prefill_inputs(1, length, heads, kv_heads, head_dim, bias)
    caches = []
    for rows in (k, v):
        cache = np.full((length + 3, kv_heads * head_dim), np.nan, np.float16)
        cache[:length] = rows.reshape(length, -1)
        caches.append(cache)
    scale = head_dim**-0.5
    wanted = reference.attention(q, k, v, length - 1, scale).reshape(1, -1)
    partial = poisoned(config.partial_shape, np.float32)
    statistics = poisoned(config.statistics_shape, np.float32)

    def keep(buffer):
        def copy(result):
            assert np.isfinite(result).all()
            buffer[:] = result

        return copy

    out, expected = output_for(config.output, wanted)
    split = {
        "q": q.reshape(-1).astype(DTYPES[config.query]),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "partial": partial,
        "statistics": statistics,
        "length": np.array([length], np.int32),
        "scale": scale,
    }
    combine = {"partial": partial, "statistics": statistics, "out": out}
    # With biases a score is thousands of units: an ulp of it in f32 moves a weight by 1e-3.
    tolerance = (5e-3, 2e-3) if bias and config.output != "q8" else DECODE_TOLERANCE[config.output]
    name = f"length={length}"
    return [
        Case(
            attention_decode(config),
            config.grid(),
            split,
            {"partial": keep(partial), "statistics": keep(statistics)},
            name=name,
        ),
        Case(attention_combine(config), config.combine_grid(), combine, {"out": expected}, *tolerance, name),
    ]
