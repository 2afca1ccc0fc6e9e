"""Launches of the elementwise kernels with their expected outputs."""

from collections.abc import Callable

import numpy as np

from minfer.cuda import elementwise as ew
from minfer.cuda import reference
from minfer.cuda.kernel import Kernel
from minfer.cuda.q8 import PAD40_BYTES, q8_record_bytes
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned

ROWS = {"f32": np.float32, "f16": np.float16}


def check_records(values: np.ndarray):
    """An assertion on q8 records of `values` [nt, dim]: int8 within half a step, scales and sums as
    defined, the unused half of the last record zero."""

    def check(records: np.ndarray) -> None:
        dim = values.shape[-1]
        q, d, s = reference.unpack_q8(records, dim)
        blocks = values.reshape(*values.shape[:-1], -1, 32).astype(np.float64)
        np.testing.assert_allclose(d, np.abs(blocks).max(-1) / 127, rtol=3e-5, atol=1e-12)
        step = np.repeat(d.astype(np.float64), 32, axis=-1)
        assert np.all(np.abs(q * step - values) <= step * 0.502 + np.abs(values) * 2e-5)
        np.testing.assert_allclose(
            s, d * q.reshape(blocks.shape).sum(-1, dtype=np.int64), rtol=1e-6, atol=1e-12
        )
        padded = -(-dim // 64) * 64
        if padded != dim:
            tail, tail_d, tail_s = reference.unpack_q8(records, padded)
            assert not tail[..., dim:].any() and not tail_d[..., -1].any() and not tail_s[..., -1].any()

    return check


def check_chunks(values: np.ndarray):
    """An assertion on pad40 chunks of `values` [nt, dim]: what the reference makes of them, but for a last
    bit here and there that the producer's arithmetic differs in."""

    def check(chunks: np.ndarray) -> None:
        q, d, total = reference.unpack_pad40(chunks)
        wanted_q, wanted_d, _ = reference.quantize_pad40(values)
        np.testing.assert_allclose(d.astype(float), wanted_d.astype(float), rtol=1.1e-3, atol=6e-8)
        assert np.abs(q.astype(int) - wanted_q).max() <= 1
        assert np.mean(q != wanted_q) < 0.01 or q.size < 500
        np.testing.assert_array_equal(total, q.reshape(*d.shape, 32).sum(-1, dtype=np.int32))
        assert not chunks[..., 2:4].any()

    return check


def output_for(kind: str, values: np.ndarray):
    """(poisoned buffer, expectation) of an output of this kind."""
    if kind == "q8":
        return poisoned((len(values), q8_record_bytes(values.shape[1])), np.uint8), check_records(values)
    if kind == "pad40":
        shape = (len(values), values.shape[1] // 32, PAD40_BYTES)
        return poisoned(shape, np.uint8), check_chunks(values)
    return poisoned(values.shape, ROWS[kind]), values.astype(ROWS[kind])


TOLERANCE = {"f32": (2e-6, 1e-7), "f16": (1e-3, 1e-6), "q8": (0.0, 0.0), "pad40": (0.0, 0.0)}


def _case(kernel: Kernel, grid, arguments, expected, kind: str, name: str) -> Case:
    rtol, atol = TOLERANCE[kind]
    return Case(kernel, grid, arguments, expected, rtol, atol, name)


def rmsnorm_case(
    nt: int,
    dim: int,
    output: str = "f32",
    residual: bool = False,
    vector: int = 4,
    threads: int = 256,
    residual_type: str = "f32",
):
    rng = np.random.default_rng(nt + dim)
    x = rng.normal(size=(nt, dim)).astype(np.float32) * 3
    added = rng.normal(size=(nt, dim)).astype(ROWS[residual_type])
    weight = rng.normal(size=dim).astype(np.float32)
    hidden, y = reference.rmsnorm(x, weight, 1e-6, added if residual else None)
    config = ew.RmsNormConfig(output, residual, vector, threads, residual_type)
    buffer, wanted = output_for(output, y)
    arguments, expected = {"x": x}, {"out": wanted}
    if residual:
        arguments |= {"residual": added, "hidden": poisoned(x.shape, np.float32)}
        expected["hidden"] = hidden
    arguments |= {"weight": weight, "out": buffer, "dim": dim, "eps": 1e-6}
    return _case(ew.rmsnorm(config), config.grid(nt), arguments, expected, output, f"nt={nt} dim={dim}")


def swiglu_case(nt: int, ff: int, output="f32", source="f32", packed=False, vector=4, threads=256) -> Case:
    rng = np.random.default_rng(nt + ff)
    both = (rng.normal(size=(nt, 2, ff)) * 4).astype(ROWS[source])
    both[0, 0, : min(4, ff)] = [100, -100, 0, -30][:ff]
    y = reference.swiglu(both[:, 0], both[:, 1])
    config = ew.SwigluConfig(output, source, packed, vector, threads)
    buffer, wanted = output_for(output, y)
    inputs = {"gate_up": both.reshape(nt, -1)}
    if not packed:
        inputs = {"gate": both[:, 0].copy(), "up": both[:, 1].copy()}
    arguments = {**inputs, "out": buffer, "ff": ff}
    return _case(
        ew.swiglu(config), config.grid(nt, ff), arguments, {"out": wanted}, output, f"nt={nt} ff={ff}"
    )


def bias_add_case(nt: int, dim: int, vector: int = 4, threads: int = 256) -> Case:
    rng = np.random.default_rng(nt + dim)
    x, bias = rng.normal(size=(nt, dim)).astype(np.float32), rng.normal(size=dim).astype(np.float32)
    config = ew.AddConfig(vector, threads)
    arguments = {"x": x, "bias": bias, "dim": dim}
    return Case(
        ew.bias_add(config), config.grid(nt, dim), arguments, {"x": x + bias}, name=f"nt={nt} dim={dim}"
    )


def residual_add_case(nt: int, dim: int, vector: int = 4, threads: int = 256) -> Case:
    rng = np.random.default_rng(nt + dim)
    a, b = (rng.normal(size=(nt, dim)).astype(np.float32) for _ in range(2))
    config = ew.AddConfig(vector, threads)
    arguments = {"a": a, "b": b, "out": poisoned(a.shape, np.float32), "dim": dim}
    return Case(
        ew.residual_add(config), config.grid(nt, dim), arguments, {"out": a + b}, name=f"nt={nt} dim={dim}"
    )


def _rope_inputs(rng, nt: int, rotary: int, factors: bool):
    frequencies = 1e4 ** (-np.arange(0, rotary, 2) / rotary)
    if factors:
        frequencies = frequencies / rng.uniform(1, 8, frequencies.size)
    positions = rng.permutation(nt + 2)[:nt].astype(np.int32)
    return positions, ew.rope_table(frequencies, nt + 2)


def rope_case(
    nt: int, heads: int, head_dim: int, rotary: int, interleaved: bool, factors=False, pad: int = 0
) -> Case:
    rng = np.random.default_rng(nt * heads + rotary)
    stride = heads * head_dim + pad
    x = rng.normal(size=(nt, stride)).astype(np.float32)
    positions, table = _rope_inputs(rng, nt, rotary, factors)
    wanted = x.copy()
    rows = x[:, : heads * head_dim].reshape(nt, heads, head_dim)
    wanted[:, : heads * head_dim] = reference.rope(rows, positions, table, interleaved).reshape(nt, -1)
    config = ew.RopeConfig(heads, head_dim, rotary, interleaved)
    arguments = {"x": x, "positions": positions, "table": table, "stride": stride}
    return Case(ew.rope(config), config.grid(nt), arguments, {"x": wanted}, 2e-6, 1e-6, f"nt={nt}")


def rope_store_case(
    nt,
    heads,
    kv_heads,
    head_dim,
    rotary,
    interleaved,
    bias,
    query,
    threads=128,
    norm=False,
    source="f32",
) -> Case:
    rng = np.random.default_rng(nt * heads + rotary)
    config = ew.RopeStoreConfig(
        heads, kv_heads, head_dim, rotary, interleaved, bias, query, threads, norm, source
    )
    qkv = rng.normal(size=(nt, config.width)).astype(ROWS[source])
    offsets = (rng.normal(size=config.width) * 100).astype(np.float32)
    positions, table = _rope_inputs(rng, nt, rotary, False)
    row = qkv.astype(np.float32)
    q, k, v = np.split(
        (row + offsets if bias else row).reshape(nt, -1, head_dim), [heads, heads + kv_heads], axis=1
    )
    norms = {}
    if norm:
        norms = {name: rng.normal(size=head_dim).astype(np.float32) for name in ("q_norm", "k_norm")}
        q, k = (reference.rmsnorm(x, norms[n], 1e-6)[1] for x, n in ((q, "q_norm"), (k, "k_norm")))
    caches = [rng.normal(size=(nt + 2, kv_heads * head_dim)).astype(np.float16) for _ in range(2)]
    rotated = [reference.rope(part, positions, table, interleaved).reshape(nt, -1) for part in (q, k)]
    arguments = {
        "qkv": qkv,
        **({"bias": offsets} if bias else {}),
        **norms,
        "positions": positions,
        "table": table,
        "q": poisoned((nt, heads * head_dim), ROWS[query]),
        "k_cache": caches[0],
        "v_cache": caches[1],
        **({"eps": 1e-6} if norm else {}),
    }
    expected = {
        "q": rotated[0].astype(ROWS[query]),
        "k_cache": reference.store_kv(caches[0], rotated[1], positions),
        "v_cache": reference.store_kv(caches[1], v.reshape(nt, -1), positions),
    }
    return Case(ew.rope_store(config), config.grid(nt), arguments, expected, 1e-3, 1e-4, f"nt={nt}")


def embedding_case(format: str, dim: int, ids: list[int], rows: int = 9) -> Case:
    raw, values = random_matrix(format, rows, dim, seed=dim)
    config = ew.EmbeddingConfig(format, dim, threads=32)
    wanted = reference.embedding_rows(values, ids)
    arguments = {
        "table": raw,
        "ids": np.array(ids, np.int32),
        "out": poisoned(wanted.shape, np.float32),
        "rows": rows,
    }
    return Case(ew.embedding(config), config.grid(len(ids)), arguments, {"out": wanted}, 1e-6, 1e-7)


def argmax_cases(logits: np.ndarray, threads: int = 256, blocks: int | None = None) -> list[Case]:
    """The stages: the others' input is the first one's result (run them in order)."""
    first, second, third = (ew.ArgmaxConfig(stage, threads) for stage in ("partial", "final", "next"))
    grid = first.grid(logits.size) if blocks is None else (blocks, 1, 1)
    candidates = poisoned((grid[0], 2), np.uint32)

    def keep(result: np.ndarray) -> None:
        candidates[:] = result

    index = np.array([reference.argmax(logits)], np.int32)
    return [
        Case(
            ew.argmax(first),
            grid,
            {"logits": logits, "candidates": candidates, "n": logits.size},
            {"candidates": keep},
        ),
        Case(
            ew.argmax(second),
            second.grid(logits.size),
            {"candidates": candidates, "index": poisoned(1, np.int32), "n": grid[0]},
            {"index": index},
        ),
        Case(
            ew.argmax(third),
            third.grid(logits.size),
            {
                "candidates": candidates,
                "chosen": np.array([-7, -8], np.int32),
                "token": poisoned(1, np.int32),
                "position": np.array([41], np.int32),
                "length": np.array([42], np.int32),
                "n": grid[0],
            },
            {
                "chosen": np.array([-7, index[0]], np.int32),
                "token": np.maximum(index, 0),
                "position": np.array([42], np.int32),
                "length": np.array([43], np.int32),
            },
        ),
    ]


def cases_by_rows(nt: int) -> dict[str, Case]:
    """A launch of each kernel that takes `nt` rows."""
    return {
        "rmsnorm": rmsnorm_case(nt, 96, "f16", threads=32),
        "rmsnorm with residual": rmsnorm_case(nt, 96, "f32", True, threads=32),
        "swiglu": swiglu_case(nt, 96, "f16", packed=True, threads=32),
        "bias_add": bias_add_case(nt, 36, threads=32),
        "residual_add": residual_add_case(nt, 36, threads=32),
        "rope": rope_case(nt, 2, 64, 64, True, factors=True),
        "rope_store": rope_store_case(nt, 3, 1, 64, 64, False, True, "f16", threads=32),
        "embedding": embedding_case("Q8_0", 64, list(range(nt)), rows=2 * nt),
    }


def check_rows_in_chunks(whole: Case, run: Callable[[Case], None]) -> None:
    """Rows that are given in two launches have the bits that they have in one."""
    run(whole)
    nt = whole.grid[0]
    parts = [whole.rows(first, last) for first, last in ((0, nt // 2), (nt // 2, nt))]
    for part in parts:
        run(part)
    for name in parts[0].expected:
        together = np.concatenate([part.results[name] for part in parts])
        np.testing.assert_array_equal(together, whole.results[name], err_msg=name)
