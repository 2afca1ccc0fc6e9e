"""Launches of the Hopper GEMM with their expected outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from minfer.cuda import reference
from minfer.cuda.elementwise import RopeStoreConfig, rope_store, rope_table
from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
from minfer.cuda.tile.seats import ORDER, make_seats
from tests.cuda.parity import Case, poisoned

# Tensor cores cut what does not fit f32 at every sum of 16 products: relative to the sum of magnitudes.
SUM_ERROR = 2e-6
ROUNDING = {"f16": 2.0**-11, "f32": 2.0**-24}
DTYPES = {"f16": np.float16, "f32": np.float32}


def seats_of(config: GemmHopperConfig, grid: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """The argument that a dependent launch has besides: seats in some order."""
    return {"seats": make_seats(np.random.default_rng(0).permutation(grid[0]))} if config.pdl else {}


def workspace_of(config: GemmHopperConfig, multiprocessors: int) -> dict[str, np.ndarray]:
    """The arguments that a launch with split_k has besides."""
    if not config.split_k:
        return {}
    tiles = multiprocessors // 2
    sums = poisoned(tiles * config.tile_n * config.tile_m, np.float32)
    return {"parts": sums, "ready": np.zeros(2 * tiles, np.uint32)}


def all_free(seats: np.ndarray) -> None:
    assert not seats[:ORDER].any()


def expected(config: GemmHopperConfig, products: Any, magnitudes: Any, before: Any, exp: Any) -> tuple:
    """(C, the error that each element may have) from A B^T and the sums of magnitudes, in f64: NumPy arrays
    or torch tensors, `exp` being theirs. `before`: what C held, for "add"."""
    if config.epilogue == "add":
        wanted = before + products
        return wanted, SUM_ERROR * magnitudes + ROUNDING["f32"] * (abs(wanted) + abs(products)) + 1e-7
    if config.epilogue == "store":
        return products, SUM_ERROR * magnitudes + ROUNDING[config.out] * abs(products) + 1e-6
    od = products.shape[1] // 2
    gate, up = products[:, :od], products[:, od:]
    silu = gate / (1 + exp(-gate))
    off_gate, off_up = SUM_ERROR * magnitudes[:, :od], SUM_ERROR * magnitudes[:, od:]
    # silu's slope is at most 1.1; the approximate exponential and reciprocal are good to 2^-20.
    bound = 1.1 * off_gate * abs(up) + abs(silu) * off_up
    return silu * up, bound + (ROUNDING[config.out] + 2.0**-20) * abs(silu * up) + 1e-6


def hopper_case(config: GemmHopperConfig, nt: int, od: int, depth: int, multiprocessors: int = 4) -> Case:
    """A random product on so many multiprocessors, and the bound that every element must keep."""
    draw = np.random.default_rng([nt, od, depth])
    rows = 2 * od if config.epilogue == "swiglu" else od
    a, b = (draw.standard_normal((n, depth)).astype(np.float16) for n in (nt, rows))
    c = poisoned((nt, od), DTYPES[config.out])
    if config.epilogue == "add":
        c = draw.standard_normal((nt, od)).astype(np.float32)
    left, right = a.astype(np.float64), b.astype(np.float64)
    magnitudes = np.abs(left) @ np.abs(right).T
    wanted, bound = expected(config, left @ right.T, magnitudes, c.astype(np.float64), np.exp)

    def check(c: np.ndarray) -> None:
        off = np.abs(c.astype(np.float64) - wanted)
        assert (off <= bound).all(), f"{(~(off <= bound)).sum()} of {c.size} off"

    grid = config.grid(nt, od, multiprocessors)
    arguments = {"a": a, "b": b, "c": c}
    arguments |= {"nt": nt, "od": od, "depth": depth, "group": config.group(nt, od)}
    return Case(
        make_gemm_hopper(config),
        grid,
        arguments | seats_of(config, grid) | workspace_of(config, multiprocessors),
        {"c": check}
        | ({"seats": all_free} if config.pdl else {})
        | ({"ready": all_free} if config.split_k else {}),
        name=f"{nt}x{od}x{depth}",
        boxes=config.boxes,
    )


def rope_case(
    config: GemmHopperConfig, nt: int, depth: int, position: int = 5, multiprocessors: int = 4
) -> Case:
    """A random product with q, k and v whose first row is token `position` of a cache with room for two more
    tokens; every element within the bound of its roundings, the cache's other rows untouched."""
    heads = config.heads
    draw = np.random.default_rng([nt, heads.width, depth])
    a = draw.standard_normal((nt, depth)).astype(np.float16)
    b = draw.standard_normal((heads.width, depth)).astype(np.float16)
    bias = (draw.standard_normal(heads.width) * 10).astype(np.float32)
    capacity, (q_dim, kv_dim) = position + nt + 2, (n * heads.head_dim for n in (heads.heads, heads.kv_heads))
    table = rope_table(1e4 ** (-np.arange(0, heads.head_dim, 2) / heads.head_dim), capacity)
    caches = [draw.standard_normal((capacity, kv_dim)).astype(np.float16) for _ in range(2)]
    left, right = a.astype(np.float64), b.astype(np.float64)
    products = left @ right.T
    off = SUM_ERROR * (np.abs(left) @ np.abs(right).T) + ROUNDING["f16"] * np.abs(products) + 1e-6
    rows = products + bias if heads.bias else products
    positions = np.arange(position, position + nt)

    def parts(matrix: np.ndarray, turns: np.ndarray) -> list[np.ndarray]:
        """q, k and v of every token, q and k turned by a table."""
        every = matrix.reshape(nt, -1, heads.head_dim)
        turned = reference.rope(every[:, : heads.heads + heads.kv_heads], positions, turns, heads.interleaved)
        both = turned.reshape(nt, -1)
        return [both[:, :q_dim], both[:, q_dim:], matrix[:, q_dim + kv_dim :]]

    # |sin| turned by -1 adds up what the errors of a pair can make of each other, in both of its columns.
    wanted = parts(rows, table)
    bounds = [np.maximum(x, y) for x, y in zip(
        parts(off, np.abs(table)), parts(off, np.abs(table) * np.float32([1, -1])), strict=True
    )]  # fmt: skip

    def check(name: str, start: int) -> Any:
        place = ("q", "k_cache", "v_cache").index(name)

        def compare(got: np.ndarray) -> None:
            found, sure = got[start : start + nt].astype(np.float64), wanted[place]
            bound = bounds[place] + ROUNDING["f16"] * np.abs(sure) + 1e-6
            wrong = ~(np.abs(found - sure) <= bound)
            assert not wrong.any(), f"{name}: {wrong.sum()} of {wrong.size} off"
            if start:
                outside = np.r_[:start, start + nt : len(got)]
                np.testing.assert_array_equal(got[outside], caches[place - 1][outside], err_msg=name)

        return compare

    grid = config.grid(nt, heads.width, multiprocessors)
    arguments = {
        "a": a,
        "b": b,
        **({"bias": bias} if heads.bias else {}),
        "table": table,
        "q": poisoned((nt, q_dim), np.float16),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "nt": nt,
        "od": heads.width,
        "depth": depth,
        "group": config.group(nt, heads.width),
        "position": position,
        **seats_of(config, grid),
        **workspace_of(config, multiprocessors),
    }
    return Case(
        make_gemm_hopper(config),
        grid,
        arguments,
        {name: check(name, position * (name != "q")) for name in ("q", "k_cache", "v_cache")},
        name=f"{nt}x{heads.width}x{depth} at {position}",
        boxes={name: config.boxes[name] for name in ("a", "b")},
    )


def apart_cases(case: Case, multiprocessors: int = 4) -> tuple[Case, Case]:
    """The same as a `rope_case` by two kernels: the product as f16, and the pass over it, which is to run
    second and finds the first one's result in its arguments. Both leave only what was asked for: nothing."""
    config, given = case.kernel.config, case.arguments
    heads, nt, position = config.heads, given["nt"], given["position"]
    qkv = poisoned((nt, heads.width), np.float16)
    plain = replace(config, epilogue="store", heads=None, pdl=False)

    def keep(result: np.ndarray) -> None:
        qkv[:] = result

    sizes = {"nt": nt, "od": heads.width, "depth": given["depth"], "group": given["group"]}
    product = Case(
        make_gemm_hopper(plain),
        plain.grid(nt, heads.width, multiprocessors),
        {"a": given["a"], "b": given["b"], "c": qkv, **sizes, **workspace_of(plain, multiprocessors)},
        {"c": keep},
        boxes=plain.boxes,
    )
    shape = heads.heads, heads.kv_heads, heads.head_dim, heads.head_dim, heads.interleaved, heads.bias
    stored = RopeStoreConfig(*shape, source="f16")
    passed = {name: given[name] for name in ("bias", "table", "q", "k_cache", "v_cache") if name in given}
    positions = np.arange(position, position + nt, dtype=np.int32)
    order = [argument.name for argument in rope_store(stored).passed]
    arguments = {"qkv": qkv, "positions": positions, **passed}
    nothing = {name: lambda result: None for name in ("q", "k_cache", "v_cache")}
    turned = Case(rope_store(stored), stored.grid(nt), {name: arguments[name] for name in order}, nothing)
    return product, turned


def check_bits(case: Case, run: Any, multiprocessors: int = 4) -> None:
    """A `rope_case` and the same by two kernels, all run by `run`: the same bits."""
    cases = (case, *apart_cases(case, multiprocessors))
    for each in cases:
        run(each)
    for name in ("q", "k_cache", "v_cache"):
        np.testing.assert_array_equal(case.results[name], cases[-1].results[name], err_msg=name)
