"""Launches of the convert kernels with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.convert import ConvertConfig, StoreKvConfig, convert_f32_f16, store_kv_f16
from tests.cuda.parity import Case, poisoned


def convert_case(n: int, vector: int, threads: int = 64) -> Case:
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    special = np.array(
        [65504, 65520, -1e6, 2.0**-24, 2.0**-26, -0.0, np.inf, np.nan, 1 + 2.0**-11], np.float32
    )
    x[: special.size] = special[:n]
    config = ConvertConfig(vector=vector, threads=threads)
    arguments = {"x": x, "out": poisoned(n, np.float16), "n": n}
    return Case(
        convert_f32_f16(config), config.grid(n), arguments, {"out": reference.convert_f16(x)}, name=f"n={n}"
    )


def store_kv_case(nt: int, width: int, vector: int, capacity: int = 0, threads: int = 32) -> Case:
    rng = np.random.default_rng(nt * 1000 + width)
    capacity = capacity or nt + 3
    rows = rng.normal(size=(nt, width)).astype(np.float32)
    positions = rng.permutation(capacity)[:nt].astype(np.int32)
    cache = rng.normal(size=(capacity, width)).astype(np.float16)
    config = StoreKvConfig(vector=vector, threads=threads)
    arguments = {"rows": rows, "cache": cache, "positions": positions, "width": width}
    expected = {"cache": reference.store_kv(cache, rows, positions)}
    return Case(
        store_kv_f16(config), config.grid(nt, width), arguments, expected, name=f"nt={nt} width={width}"
    )
