"""The host's other kernels against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.engine.host import attention, elementwise
from minfer.engine.host.team import Program, float_bits, team
from minfer.engine.host.weights import address


def run(kernel, *arguments: int, parts: int = 3) -> None:
    program = Program()
    program.add(kernel, *arguments, parts=parts)
    team(2).run(program.table())


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 576), (3, 3584)])
def test_rmsnorm(rows, width):
    x, weight, out = random(rows, width), random(width, seed=1), np.empty((rows, width), np.float32)
    run(elementwise.rmsnorm, address(out), address(x), address(weight), rows, width, float_bits(1e-5))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope(interleaved):
    rows, heads, pairs, first = 4, 3, 8, 1000
    frequencies = (10000.0 ** -(np.arange(pairs) / pairs)).astype(np.float32)
    table = np.empty((rows, 2 * pairs), np.float32)
    position = np.array([first])
    run(
        elementwise.rotary_table, address(table), address(position), address(frequencies), pairs, rows,
        float_bits(1.25),
    )  # fmt: skip
    wide = random(rows, heads * 2 * pairs + 16)  # a view of a wider buffer, as k is of qkv
    x = wide[:, : heads * 2 * pairs]
    before, rest = x.copy().astype(np.float64), wide[:, heads * 2 * pairs :].copy()
    run(elementwise.rotate, address(x), x.strides[0], address(table), rows, heads, pairs, int(interleaved))
    angles = (first + np.arange(rows))[:, None] * frequencies.astype(np.float64)
    turn = 1.25 * np.exp(1j * angles)[:, None, :]
    shaped = (
        before.reshape(rows, heads, pairs, 2)
        if interleaved
        else before.reshape(rows, heads, 2, pairs).swapaxes(2, 3)
    )
    turned = (shaped[..., 0] + 1j * shaped[..., 1]) * turn
    expected = np.stack([turned.real, turned.imag], axis=3 if interleaved else 2).reshape(rows, -1)
    np.testing.assert_allclose(x, expected, atol=2e-6)
    np.testing.assert_array_equal(wide[:, heads * 2 * pairs :], rest)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_swiglu(scale):
    gate_up, out = random(3, 2 * 48, scale=scale), np.empty((3, 48), np.float32)
    run(elementwise.swiglu, address(out), address(gate_up), 3, 48)
    gate, up = gate_up[:, :48].astype(np.float64), gate_up[:, 48:].astype(np.float64)
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=2e-6, atol=1e-12)


def test_widen_is_exact():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    out = np.empty(1 << 16, np.float32)
    run(elementwise.widen, address(out), address(halves), 1 << 16)
    np.testing.assert_array_equal(out, halves.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_store_kv_rounds_to_nearest_and_stays_in_place(dtype):
    heads, context, head_dim, rows = 2, 32, 16, 3
    cache = np.full((heads, context, head_dim), 7, dtype)
    x = random(rows, heads * head_dim + 8, scale=100)
    position = np.array([5])
    run(
        elementwise.store_kv, address(cache), context, address(position), address(x), x.strides[0], rows,
        heads, head_dim, int(dtype == np.float16),
    )  # fmt: skip
    expected = np.full_like(cache, 7)
    expected[:, 5:8] = x[:, : heads * head_dim].reshape(rows, heads, head_dim).swapaxes(0, 1).astype(dtype)
    np.testing.assert_array_equal(cache, expected)


def plain_attention(q, keys, values, first, group, head_dim):
    """Causal attention in float64: q (rows, heads * head_dim), caches (kv heads, context, head_dim)."""
    out = np.empty(q.shape)
    for row in range(len(q)):
        for start in range(0, q.shape[1], head_dim):
            kv_head, seen = start // head_dim // group, first + row + 1
            k, v = (a[kv_head, :seen].astype(np.float64) for a in (keys, values))
            scores = k @ q[row, start : start + head_dim] * head_dim**-0.5
            weights = np.exp(scores - scores.max())
            out[row, start : start + head_dim] = weights @ v / weights.sum()
    return out


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("first", [0, 1, 30, 93])
@pytest.mark.parametrize("offset", [0, 2])
def test_attend_few(dtype, first, offset):
    rows, heads, group, head_dim, context = 2, 6, 3, 32, 112
    q = random(rows, heads * head_dim + 16, scale=3)
    keys = random(heads // group, context, head_dim, seed=1).astype(dtype)
    values = random(heads // group, context, head_dim, seed=2).astype(dtype)
    keys[:, first + offset + rows :] = np.nan
    values[:, first + offset + rows :] = np.nan
    out = np.empty((rows, heads * head_dim), np.float32)
    scratch = np.empty((rows, heads, context), np.float32)
    position = np.array([first])
    run(
        attention.attend_few, address(out), address(q), q.strides[0], address(keys), address(values), context,
        address(position), offset, rows, heads, group, head_dim, address(scratch), float_bits(head_dim**-0.5),
        int(dtype == np.float16),
    )  # fmt: skip
    q = q[:, : heads * head_dim]
    np.testing.assert_allclose(
        out, plain_attention(q, keys, values, first + offset, group, head_dim), atol=3e-6
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize(
    ("queries", "first"), [(1, 0), (4, 0), (5, 1), (16, 0), (17, 46), (33, 31), (50, 200)]
)
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_attend_many(dtype, head_dim, queries, first, spread):
    """From the cache to the output: keys transposed, values widened, blocks of queries."""
    heads, group, context, count = 4, 2, 256, first + queries
    width = -(-count // 64) * 64
    q = random(queries, heads * head_dim + 16, scale=spread)
    keys = random(heads // group, context, head_dim, seed=1).astype(dtype)
    values = random(heads // group, context, head_dim, seed=2).astype(dtype)
    keys[:, count:] = np.nan
    values[:, count:] = np.nan
    transposed = np.full((heads // group, head_dim, width), np.nan, np.float32)
    run(
        attention.transpose_keys, address(transposed), address(keys), context, count, width, heads // group,
        head_dim, int(dtype == np.float16),
    )  # fmt: skip
    np.testing.assert_array_equal(transposed[:, :, :count], keys[:, :count].swapaxes(1, 2))
    assert (transposed[:, :, count:] == 0).all()
    wide = values.astype(np.float32)
    out = np.full((queries, heads * head_dim), np.nan, np.float32)
    scratch = np.full((3, attention.QUERY_BLOCK, width), np.nan, np.float32)
    run(
        attention.attend_many, address(out), address(q), q.strides[0], address(transposed), width,
        address(wide), context, first, queries, heads, group, head_dim, address(scratch),
        float_bits(head_dim**-0.5),
    )  # fmt: skip
    expected = plain_attention(q[:, : heads * head_dim], keys, values, first, group, head_dim)
    # a score's rounding error grows with it, and is a relative error of its weight
    np.testing.assert_allclose(out, expected, atol=3e-6 if spread == 1 else 2e-4)
