"""What the read, convert, quantize, elementwise, attention and GEMV kernels compute, in NumPy.

The gates and the tests compare every kernel variant with these. They compute in float64 and round once, to
the dtype that the kernel writes, so that a kernel's error is measured against the mathematics and not
against another kernel's summation order. Inputs keep the dtypes that the kernels read. Nothing here knows
block formats: weights come in as float arrays, dequantized by whoever holds the oracle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minfer.cuda.q8 import PAD40_BYTES, Q8_GROUP, Q8_RECORD_BYTES, RUN


def read_memory(words: NDArray[np.uint32], threads: int) -> NDArray[np.uint32]:
    """The exclusive or of the words [pieces, 4] that each of `threads` threads reads: pieces t, t + threads,
    ..."""
    rows = -(-len(words) // threads)
    padded = np.zeros((rows * threads, 4), np.uint32)
    padded[: len(words)] = words
    return np.bitwise_xor.reduce(padded.reshape(rows, threads, 4), axis=(0, 2))


def resident_sums(a: NDArray, b: NDArray, k_tiles: int) -> NDArray:
    """sum over k < k_tiles of a[k % s] b[(k + k // s) % s]^T of operands [s, rows, columns]: f64 of floats,
    int32 of integers (f64 holds them all)."""
    s = len(a)
    wide, other = a.astype(np.float64), b.astype(np.float64)
    sums = sum(wide[k % s] @ other[(k + k // s) % s].T for k in range(k_tiles))
    return sums if np.issubdtype(a.dtype, np.floating) else sums.astype(np.int32)


def convert_f16(x: ArrayLike) -> NDArray[np.float16]:
    """f32 -> f16, round to nearest even, overflow to infinity (seed 000, section 3.2: convert_f32_f16)."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16)


def store_kv(cache: NDArray[np.float16], rows: ArrayLike, positions: ArrayLike) -> NDArray[np.float16]:
    """A copy of `cache` [capacity, kv_heads * head_dim] whose rows `positions` [nt] are `rows` [nt, ...] in
    f16 (seed 000, section 3.2: store_kv_f16)."""
    out = cache.copy()
    out[np.asarray(positions)] = convert_f16(rows)
    return out


def rmsnorm(
    x: ArrayLike, weight: ArrayLike, eps: float, residual: ArrayLike | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(h, y): h = x (+ residual) rounded to f32, y = h / sqrt(mean(h^2) + eps) * weight, over the last
    axis."""
    h = np.asarray(x, np.float32)
    if residual is not None:
        h = h + np.asarray(residual, np.float32)
    wide = h.astype(np.float64)
    scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return h, (wide * scale * np.asarray(weight, np.float64)).astype(np.float32)


def rope(
    x: ArrayLike, positions: ArrayLike, table: NDArray[np.float32], interleaved: bool
) -> NDArray[np.float32]:
    """Rotate the first `rotary` dims of every head of x [nt, heads, head_dim]; the rest passes through.

    Pairs are (2i, 2i + 1) when interleaved (llama's "normal"), (i, i + rotary / 2) otherwise (NEOX).
    """
    out = np.array(x, np.float64)
    half = table.shape[1]
    cos, sin = (table[np.asarray(positions)].astype(np.float64)[:, None, :, i] for i in (0, 1))
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out.astype(np.float32)


def swiglu(gate: ArrayLike, up: ArrayLike) -> NDArray[np.float32]:
    """silu(gate) * up, silu(g) = g / (1 + exp(-g))."""
    g, u = np.asarray(gate, np.float64), np.asarray(up, np.float64)
    with np.errstate(over="ignore"):
        return (g / (1.0 + np.exp(-g)) * u).astype(np.float32)


def argmax(logits: ArrayLike) -> int:
    """Index of the largest logit, the lowest of equals; -1 where any logit is NaN (the forward pass is
    broken, and a token must not be made of it)."""
    values = np.asarray(logits, np.float32).reshape(-1)
    return -1 if np.isnan(values).any() else int(np.argmax(values))


def embedding_rows(table: NDArray[np.float32], ids: ArrayLike) -> NDArray[np.float32]:
    """Rows `ids` [nt] of the dequantized table [rows, dim]; an id outside the table gives a row of NaN."""
    ids = np.asarray(ids)
    out = np.full((ids.size, table.shape[1]), np.nan, np.float32)
    legal = (ids >= 0) & (ids < table.shape[0])
    out[legal] = table[ids[legal]]
    return out


def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, q_offset: int, scale: float | None = None
) -> NDArray[np.float32]:
    """Causal grouped-query attention.

    q [nt, heads, head_dim], k and v [kv_end, kv_heads, head_dim]; query t sits at position q_offset + t and
    sees cache rows 0 .. min(q_offset + t, kv_end - 1). Head h reads kv head h // (heads / kv_heads).
    Scores, softmax and the sum over values in float64. `scale` defaults to 1 / sqrt(head_dim). Returns [nt,
    heads, head_dim].
    """
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    nt, heads, head_dim = q.shape
    kv_end, kv_heads, _ = k.shape
    group = heads // kv_heads
    scale = 1.0 / np.sqrt(head_dim) if scale is None else scale
    visible = np.arange(kv_end)[None, :] <= (q_offset + np.arange(nt))[:, None]
    out = np.empty_like(q)
    for head in range(heads):
        scores = np.where(visible, q[:, head] @ k[:, head // group].T * scale, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = (weights @ v[:, head // group]) / weights.sum(axis=1, keepdims=True)
    return out.astype(np.float32)


def quantize_q8(x: ArrayLike) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """(q, d, s) of activations x [..., id], a multiple of 32: d = max|x| / 127 over each run of 32, q = x / d
    rounded half to even, s = d * sum(q) (llama.cpp's block_q8_1, with f32 scales)."""
    blocks = np.asarray(x, np.float32).reshape(*np.shape(x)[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1)
    d = (largest / np.float32(127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    q = np.rint(blocks * inverse[..., None]).astype(np.int8)
    s = (d * q.sum(axis=-1, dtype=np.int32).astype(np.float32)).astype(np.float32)
    return q.reshape(np.shape(x)), d, s


def pack_q8(q: NDArray[np.int8], d: NDArray[np.float32], s: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Records [..., ceil(id / 64) * 80] bytes of (q, d, s): 64 int8, d of both halves, s of both halves,
    f32 little endian. An odd last half is zero."""
    lead, dim = q.shape[:-1], q.shape[-1]
    groups = -(-dim // Q8_GROUP)
    record = np.zeros((*lead, groups, Q8_RECORD_BYTES), np.uint8)
    values = np.zeros((*lead, groups * Q8_GROUP), np.int8)
    values[..., :dim] = q
    scales = np.zeros((2, *lead, groups * 2), np.float32)
    scales[0, ..., : dim // 32], scales[1, ..., : dim // 32] = d, s
    record[..., :64] = values.view(np.uint8).reshape(*lead, groups, 64)
    for i in range(2):
        record[..., 64 + 8 * i : 72 + 8 * i] = scales[i].reshape(*lead, groups, 2).view(np.uint8)
    return record.reshape(*lead, -1)


def unpack_q8(
    records: NDArray[np.uint8], dim: int
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """(q, d, s) of q8 records [..., ceil(id / 64) * 80]: the inverse of `pack_q8`."""
    lead = records.shape[:-1]
    record = records.reshape(*lead, -1, Q8_RECORD_BYTES)
    q = np.ascontiguousarray(record[..., :64]).view(np.int8).reshape(*lead, -1)[..., :dim]
    d, s = (
        np.ascontiguousarray(record[..., 64 + 8 * i : 72 + 8 * i]).view(np.float32).reshape(*lead, -1)
        for i in range(2)
    )
    return q, d[..., : dim // 32], s[..., : dim // 32]


def dequantize_q8(records: NDArray[np.uint8], dim: int) -> NDArray[np.float64]:
    """The activations [..., id] that q8 records stand for, in float64."""
    q, d, _ = unpack_q8(records, dim)
    return q.astype(np.float64) * np.repeat(d.astype(np.float64), 32, axis=-1)


def quantize_pad40(x: ArrayLike) -> tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.int32]]:
    """(q, d, sum) of activations x [..., id], a multiple of 32: d = max|x| / 127 over each run of 32 in f32,
    stored as f16; q = x * (127 / max|x|) rounded half to even and clamped to int8; the sums of the q. All
    divisions and products are IEEE f32, so this is what every quantizer writes, bit for bit. A run whose d
    f16 rounds to zero is zero; one that is not finite has q = 0 and a d that is not finite."""
    runs = np.asarray(x, np.float32).reshape(*np.shape(x)[:-1], -1, RUN)
    top = np.abs(runs).max(axis=-1)  # NaN where one is
    with np.errstate(all="ignore"):
        d = (top / np.float32(127)).astype(np.float16)
        inverse = np.where(d != 0, np.float32(127) / top, np.float32(0)).astype(np.float32)
        scaled = np.rint(runs * inverse[..., None])
    q = np.nan_to_num(scaled, nan=0).clip(-128, 127).astype(np.int8)
    return q.reshape(np.shape(x)), d, q.sum(axis=-1, dtype=np.int32)


def pack_pad40(q: NDArray[np.int8], d: NDArray[np.float16], total: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Chunks [..., id / 32, 40] bytes of (q, d, sum): d, two zero bytes, 32 int8, the sum (seed 003)."""
    chunks = np.zeros((*d.shape, PAD40_BYTES), np.uint8)
    chunks[..., :2] = np.ascontiguousarray(d)[..., None].view(np.uint8)
    chunks[..., 4:36] = q.view(np.uint8).reshape(*d.shape, RUN)
    chunks[..., 36:] = np.ascontiguousarray(total)[..., None].view(np.uint8)
    return chunks


def unpack_pad40(
    chunks: NDArray[np.uint8],
) -> tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.int32]]:
    """(q, d, sum) of chunks [..., id / 32, 40]: the inverse of `pack_pad40`."""
    lead = chunks.shape[:-2]
    q = np.ascontiguousarray(chunks[..., 4:36]).view(np.int8).reshape(*lead, -1)
    d = np.ascontiguousarray(chunks[..., :2]).view(np.float16)[..., 0]
    return q, d, np.ascontiguousarray(chunks[..., 36:]).view(np.int32)[..., 0]


def dequantize_pad40(chunks: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The activations [..., id] that pad40 chunks stand for, in float64."""
    q, d, _ = unpack_pad40(chunks)
    return q.astype(np.float64) * np.repeat(d.astype(np.float64), RUN, axis=-1)


def quantize_runs(x: ArrayLike, run: int = 16) -> NDArray[np.float64]:
    """What activations x [id] become as int8 with a scale a run: the token kernel's records, dequantized."""
    runs = np.asarray(x, np.float32).reshape(-1, run)
    largest = np.abs(runs).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    scale = (largest / np.float32(127)).astype(np.float64)
    return (np.rint(runs * inverse) * scale).reshape(-1)


def gemv(weights: ArrayLike, x: ArrayLike, addend: ArrayLike | None = None) -> NDArray[np.float32]:
    """y [od] = weights [od, id] @ x [id] (+ addend [od]), accumulated in float64."""
    y = np.asarray(weights, np.float64) @ np.asarray(x, np.float64)
    if addend is not None:
        y = y + np.asarray(addend, np.float64)
    return y.astype(np.float32)
