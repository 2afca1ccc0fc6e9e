"""A decode step of a small model as one launch of the token kernel, and what it must give."""

from dataclasses import dataclass

import numpy as np

from minfer.cuda import reference
from minfer.cuda.elementwise import rope_table
from minfer.cuda.token import TokenConfig, decode_token
from minfer.cuda.token.schedule import ARRIVE, Layer, Matrix, model_schedule, table
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned

EPS = 1e-6


class Arena:
    """Arrays one behind the other in one, each at a multiple of 256 bytes."""

    def __init__(self):
        self.parts, self.size = [], 0

    def add(self, array: np.ndarray) -> int:
        """The array's offset in bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        data = np.concatenate([data, np.zeros(-data.size % 256, np.uint8)])
        self.parts.append(data)
        self.size += data.size
        return self.size - data.size

    def bytes(self) -> np.ndarray:
        return np.concatenate(self.parts)


@dataclass
class Weights:
    values: np.ndarray
    place: Matrix


SPREAD = {"Q4_K": 186.0, "Q6_K": 790.0}
"""Standard deviation of weights whose bits are random, over the largest scale."""


def matrix(arena: Arena, rng, format: str, rows: int, columns: int, gain: float = 1.0) -> Weights:
    """Weights that make outputs `gain` times as large as inputs."""
    scale = gain / SPREAD[format] / columns**0.5
    raw, values = random_matrix(format, rows, columns, int(rng.integers(1 << 30)), scale)
    return Weights(values, Matrix(arena.add(raw), format, rows, columns))


def token_case(
    config: TokenConfig,
    formats: list[tuple[str, str]],
    vocab: int = 200,
    position: int = 5,
    seed: int = 0,
    choose: bool = True,
) -> Case:
    """A model of len(formats) layers, each with its formats of V and down."""
    rng = np.random.default_rng(seed + position)
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    q_dim, kv_dim, hidden, ffn = heads * head_dim, kv_heads * head_dim, config.hidden, config.ffn
    capacity = position + 3
    weights, vectors = Arena(), Arena()
    rope = rope_table(10000.0 ** (-np.arange(config.rotary // 2) * 2 / config.rotary), capacity)
    caches = rng.normal(size=(2, len(formats), capacity, kv_dim)).astype(np.float16)
    caches[:, :, position:] = np.nan
    start = rng.normal(size=hidden).astype(np.float32)
    x, layers, stored = start.astype(np.float64), [], caches.copy()
    for n, (v_format, down_format) in enumerate(formats):
        gains = 1 + 0.1 * rng.standard_normal((2, hidden)).astype(np.float32)
        bias = rng.normal(size=q_dim + 2 * kv_dim).astype(np.float32)
        if v_format == "Q4_K":
            qkv = [matrix(weights, rng, "Q4_K", q_dim + 2 * kv_dim, hidden, 2.0)]
        else:
            qkv = [
                matrix(weights, rng, "Q4_K", q_dim + kv_dim, hidden, 2.0),
                matrix(weights, rng, v_format, kv_dim, hidden, 2.0),
            ]
        o = matrix(weights, rng, "Q4_K", hidden, q_dim)
        gate_up = matrix(weights, rng, "Q4_K", 2 * ffn, hidden)
        down = matrix(weights, rng, down_format, hidden, ffn)
        normed = reference.quantize_runs(reference.rmsnorm(x, gains[0], EPS)[1])
        row = np.concatenate([part.values @ normed for part in qkv]) + (bias if config.bias else 0)
        q, k, v = (part.reshape(1, -1, head_dim) for part in np.split(row, [q_dim, q_dim + kv_dim]))
        q, k = (reference.rope(part, [position], rope, config.interleaved) for part in (q, k))
        stored[0, n, position], stored[1, n, position] = k.reshape(-1), v.reshape(-1)
        filled = [rows[n, : position + 1].reshape(-1, kv_heads, head_dim) for rows in stored]
        x = x + o.values @ reference.quantize_runs(reference.attention(q, *filled, position).reshape(-1))
        gate, up = np.split(
            gate_up.values @ reference.quantize_runs(reference.rmsnorm(x, gains[1], EPS)[1]), 2
        )
        x = x + down.values @ reference.quantize_runs(reference.swiglu(gate, up))
        layers.append(
            Layer(
                attn_norm=vectors.add(gains[0]), ffn_norm=vectors.add(gains[1]), bias=vectors.add(bias),
                qkv=tuple(part.place for part in qkv), o=o.place, gate_up=gate_up.place, down=down.place,
                keys=n * capacity * kv_dim * 2, values=n * capacity * kv_dim * 2,
            )
        )  # fmt: skip
    gains = 1 + 0.1 * rng.standard_normal(hidden).astype(np.float32)
    output = matrix(weights, rng, "Q6_K", vocab, hidden, 2.0)
    logits = output.values @ reference.quantize_runs(reference.rmsnorm(x, gains, EPS)[1])
    entries = model_schedule(layers, vectors.add(gains), output.place)
    assert len(entries) == config.entries

    def near(wanted: np.ndarray, limit: float = 0.02):
        """Within so much relative RMS: an activation that is quantized from another f32 may round the other
        way, by 1 / 127 of its run's largest."""

        def check(got: np.ndarray) -> None:
            error = np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2))
            assert error < limit, error

        return check

    def cached(which: int):
        def check(got: np.ndarray) -> None:
            np.testing.assert_array_equal(got[:, :position], caches[which, :, :position])
            near(stored[which, :, position].astype(np.float64))(got[:, position].astype(np.float64))
            assert np.isnan(got[:, position + 1 :]).all()

        return check

    def residual(got: np.ndarray) -> None:
        near(x)(got.reshape(hidden, -1)[:, 0])

    token = []

    def chosen(got: np.ndarray) -> None:
        """One of the largest logits, where the position's parity says."""
        token[:] = got[position & 1 : (position & 1) + 1]
        assert got[1 - (position & 1)] == -7
        assert logits[token[0]] > logits.max() - 0.05 * logits.std()

    def is_token(got: np.ndarray) -> None:
        np.testing.assert_array_equal(got, token)

    state = {
        "best": np.zeros(2, np.uint32),
        "chosen": np.full(2, -7, np.int32),
        "next_token": np.array([3], np.int32),
        "positions": np.array([position], np.int32),
        "length": np.array([position + 1], np.int32),
    }
    after = dict(state)
    if choose:
        after |= {"chosen": chosen, "next_token": is_token}
        after |= {name: state[name] + 1 for name in ("positions", "length")}

    last_tag = 1 + sum(bool(entry.flags & ARRIVE) for entry in entries)
    workspace = np.zeros if config.tagged else poisoned
    arguments = {
        "schedule": table(entries, config),
        "weights": weights.bytes(),
        "vectors": vectors.bytes().view(np.float32),
        "keys": caches[0],
        "values": caches[1],
        "x": start,
        "residual": np.zeros(config.sums_shape(hidden), np.float32) if config.tagged else start.copy(),
        "qkv": workspace(config.sums_shape(q_dim + 2 * kv_dim), np.float32),
        "attended": workspace(config.exchanged_bytes(q_dim), np.uint8),
        "activated": workspace(config.exchanged_bytes(ffn), np.uint8),
        "logits": poisoned(vocab, np.float32),
        "positions": state.pop("positions"),
        "rope_table": rope,
        "partial": poisoned(config.partial_shape, np.float32),
        "statistics": poisoned(config.statistics_shape, np.float32),
        "counters": np.zeros(config.groups, np.uint32),
        "barriers": np.zeros(3, np.uint32),
        **state,
        "eps": EPS,
        "scale": head_dim**-0.5,
        "choose": int(choose),
    }
    checks = {
        "residual": residual,
        "logits": near(logits),
        "keys": cached(0),
        "values": cached(1),
        "barriers": np.array([0, 0, last_tag if config.tagged else 0], np.uint32),
        "counters": np.zeros(config.groups, np.uint32),
        **after,
    }
    return Case(decode_token(config), config.grid, arguments, checks, 1e-9, 0, f"position={position}")
