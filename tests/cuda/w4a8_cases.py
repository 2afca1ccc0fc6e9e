"""Products of the W4A8 GEMM with their expected outputs."""

from __future__ import annotations

import numpy as np

from minfer.cuda.w4a8 import W4A8Config, w4a8
from minfer.cuda.w4a8.formats import FACTOR, GROUP
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned


def quantized(x: np.ndarray, pitch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a int8 [nt, depth], sums f32 [nt, depth / 32], scales f32 [depth / 512, pitch]) of activations."""
    nt, depth = x.shape
    groups = x.astype(np.float32).reshape(nt, depth // GROUP, GROUP)
    d = np.abs(groups).max(axis=2) / np.float32(127)
    inverse = np.where(d > 0, 1 / np.where(d > 0, d, 1), 0)
    a = np.rint(groups * inverse[..., None]).astype(np.int8)
    sums = a.reshape(nt, -1, 32).sum(axis=2, dtype=np.int32) * np.repeat(d, GROUP // 32, axis=1)
    scales = np.zeros((depth // GROUP, pitch), np.float32)
    scales[:, :nt] = d.T
    return a.reshape(nt, depth), sums.astype(np.float32), scales


def positive_matrix(rows: int, depth: int) -> np.ndarray:
    """Random Q4_K blocks whose d and dmin are not negative, as every quantizer writes them."""
    packed, _ = random_matrix("Q4_K", rows, depth)
    blocks = packed.reshape(rows, -1, 144)
    blocks[..., 1] &= 0x7F
    blocks[..., 3] &= 0x7F
    return packed


def reference(packed: np.ndarray, a: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, ...]:
    """(C, integers [nt, od, groups], bound of C's error [nt, od]) of quantized activations and blocks, in
    float64, as the kernel rounds the weights.

    The bound: the minima are products of tf32 (each factor off by 2^-10 of itself), and where a factor
    of the scales lies at a tie, f32 may round it the other way, which moves its 32 weights by one."""
    rows, depth = len(packed), a.shape[1]
    blocks = packed.reshape(rows, depth // GROUP, 2, 144)
    d, dmin = (
        np.ascontiguousarray(blocks[..., i : i + 2]).view(np.float16)[..., 0].astype(np.float64)
        for i in (0, 2)
    )
    s = blocks[..., 4:16].astype(np.int64)
    scale, minimum = np.empty((*s.shape[:-1], 8)), np.empty((*s.shape[:-1], 8))
    scale[..., :4], minimum[..., :4] = s[..., :4] & 63, s[..., 4:8] & 63
    scale[..., 4:] = (s[..., 8:] & 15) | (s[..., :4] >> 6 << 4)
    minimum[..., 4:] = (s[..., 8:] >> 4) | (s[..., 4:8] >> 6 << 4)
    packed_q = blocks[..., 16:].reshape(*d.shape, 4, 32)
    q = np.stack([packed_q & 15, packed_q >> 4], axis=4).reshape(*d.shape, 8, 32).astype(np.int64)
    largest = d.max(axis=2, keepdims=True)
    exact = scale * (d * FACTOR / largest)[..., None]
    factor = np.rint(exact).astype(np.int64)
    tie = np.abs(exact - np.floor(exact) - 0.5) < 2.0**-20 * exact
    weight = (q * factor[..., None] + 128) >> 8
    nt = len(a)
    left = a.astype(np.int64).reshape(nt, depth // GROUP, GROUP)
    integers = np.einsum("tgk,rgk->trg", left, weight.reshape(rows, depth // GROUP, GROUP))
    row_scale = largest[..., 0] * 256 / FACTOR
    token_scale = scales[:, :nt].T.astype(np.float64)
    c = np.einsum("trg,rg,tg->tr", integers.astype(np.float64), row_scale, token_scale)
    runs = left.reshape(nt, -1, 16, 32) * token_scale[..., None, None]
    moved, runs = np.abs(runs).sum(axis=3), runs.sum(axis=3)
    minima = (dmin[..., None] * minimum).reshape(rows, -1, 16)
    subtracted, magnitude = (np.einsum("tgs,rgs->tr", f(runs), f(minima)) for f in (np.positive, np.abs))
    ties = np.einsum("tgs,rgs,rg->tr", moved, tie.reshape(rows, -1, 16), row_scale)
    return c - subtracted, integers, 2.0**-9 * magnitude + ties


def activations(nt: int, depth: int, gated: bool = False) -> np.ndarray:
    """Normal f16 activations; small before a gated product, whose two factors must fit into f16."""
    x = np.random.default_rng([nt, depth]).standard_normal((nt, depth))
    return (x * (0.02 if gated else 1)).astype(np.float16)


def product_case(config: W4A8Config, x: np.ndarray, od: int, multiprocessors: int) -> Case:
    """C [nt, od] f16 of activations x [nt, depth], quantized here, and random blocks.

    Allowed: 6e-4 of the whole, and for every element its bound and the rounding to f16."""
    nt, depth = x.shape
    a, sums, scales = quantized(x, -(-nt // 4) * 4)
    w = positive_matrix(od * (1 + config.gated), depth)
    wanted, _, bound = reference(w, a, scales)
    if config.gated:
        (gate, up), (gate_off, up_off) = np.split(wanted, 2, axis=1), np.split(bound, 2, axis=1)
        sigmoid = 0.5 + 0.5 * np.tanh(0.5 * gate)
        wanted = gate * sigmoid * up
        # silu changes by at most 1.1 times its argument's change; its approximations cost 2^-20.
        bound = 1.1 * gate_off * (np.abs(up) + up_off) + np.abs(gate * sigmoid) * up_off
    bound = bound + 2.0**-10 * np.abs(wanted) + 1e-6

    def check(c: np.ndarray) -> None:
        off = c.astype(np.float64) - wanted
        assert np.linalg.norm(off) <= 6e-4 * np.linalg.norm(wanted)
        assert (np.abs(off) <= bound).all()

    config.check(nt, od, depth, od)
    arguments = {"a": a, "sums": sums, "scales": scales, "w": w, "c": poisoned((nt, od), np.float16)}
    arguments |= {"nt": nt, "od": od, "depth": depth, "first": 0, "group": config.group(nt)}
    grid = config.grid(nt, od, multiprocessors)
    return Case(w4a8(config), grid, arguments, {"c": check}, name=f"{nt}x{od}x{depth}", boxes=config.boxes)


def quantize_case(config: QuantizeGroupsConfig, x: np.ndarray) -> Case:
    """Bytes, sums and scales of activations x [nt, depth]; a reciprocal of the GPU may move a byte by one."""
    nt, depth = x.shape
    pitch = -(-nt // 4) * 4
    wanted, _, wanted_scales = quantized(x, pitch)
    found: list[np.ndarray] = []

    def check_bytes(a: np.ndarray) -> None:
        off = np.abs(a.astype(int) - wanted)
        assert off.max() <= 1 and (off == 0).mean() > 0.999
        found[:] = [a]

    def check_sums(sums: np.ndarray) -> None:
        runs = found[0].reshape(nt, -1, 32).sum(axis=2, dtype=np.int32)
        d = np.repeat(wanted_scales[:, :nt].T, GROUP // 32, axis=1)
        np.testing.assert_allclose(sums, runs * d, rtol=1e-5)

    def check_scales(scales: np.ndarray) -> None:
        np.testing.assert_allclose(scales, wanted_scales, rtol=1e-6)

    arguments = {
        "x": x,
        "a": poisoned((nt, depth), np.int8),
        "sums": poisoned((nt, depth // 32), np.float32),
        "scales": np.zeros((depth // GROUP, pitch), np.float32),
        "nt": nt,
        "depth": depth,
        "pitch": pitch,
    }
    expected = {"a": check_bytes, "sums": check_sums, "scales": check_scales}
    return Case(quantize_groups(config), config.grid(nt, depth), arguments, expected, name=f"{nt}x{depth}")
