"""A synthetic model for the token kernel: its arrays, its schedule, and by NumPy what a step gives.

Layers with even numbers have v and down in Q6_K, the others all in Q4_K, as half of a Q4_K_M file has; the
output matrix is Q6_K. Weights lie one behind the other in one array, and so do gains and biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minfer.arithmetic.work import ModelShape
from minfer.campaign.random_blocks import random_rows, values_of
from minfer.cuda import reference
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.elementwise import rope_table
from minfer.cuda.token.schedule import Entry, Layer, Matrix, model_schedule

EPS = 1e-6
ROPE_BASE = 1e6
SPREAD = {"Q4_K": 186.0, "Q6_K": 790.0}
"""Deviation of weights whose bits are random, over the largest scale."""
ALIGNMENT = 256
TABLE = "Q4_K"
"""The embedding's format."""


@dataclass(frozen=True)
class TokenModel:
    """Names of parts are "qkv0" and "qkv1" (the runs of one format), "o", "gate_up", "down", "output" of the
    weights; "attn_norm", "ffn_norm", "bias", "output_norm" of the vectors; with a layer's number before.

    Attributes:
        shape: its dimensions. position: rows of the caches before the first step. steps: tokens.
    """

    shape: ModelShape
    position: int
    steps: int = 1

    @property
    def q_dim(self) -> int:
        return self.shape.heads * self.shape.head_dim

    @property
    def kv_dim(self) -> int:
        return self.shape.kv_heads * self.shape.head_dim

    @property
    def capacity(self) -> int:
        """Rows of a layer's cache."""
        return self.position + self.steps

    def layer_matrices(self, layer: int) -> dict[str, tuple[str, int, int]]:
        """(format, rows, columns) of a layer's matrices by name."""
        hidden, ffn, better = self.shape.hidden, self.shape.ffn, layer % 2 == 0
        stacked = [self.q_dim + self.kv_dim, self.kv_dim] if better else [self.q_dim + 2 * self.kv_dim]
        formats = ("Q4_K", "Q6_K")
        return {
            **{f"qkv{i}": (formats[i], rows, hidden) for i, rows in enumerate(stacked)},
            "o": ("Q4_K", hidden, self.q_dim),
            "gate_up": ("Q4_K", 2 * ffn, hidden),
            "down": (formats[better], hidden, ffn),
        }

    @cached_property
    def matrices(self) -> dict[str, Matrix]:
        """Every matrix by name, with its offset in bytes."""
        shapes = {
            f"{layer} {name}": found
            for layer in range(self.shape.layers)
            for name, found in self.layer_matrices(layer).items()
        }
        shapes["output"] = ("Q6_K", self.shape.vocab, self.shape.hidden)
        sizes = {name: rows * BLOCKS[f].row_bytes(columns) for name, (f, rows, columns) in shapes.items()}
        places, _ = _places(sizes)
        return {name: Matrix(places[name], f, rows, columns) for name, (f, rows, columns) in shapes.items()}

    @property
    def weight_bytes(self) -> int:
        """Of all matrices."""
        last = self.matrices["output"]
        return last.offset + last.rows * BLOCKS[last.format].row_bytes(last.columns)

    @property
    def _padded_bytes(self) -> int:
        """With what the last copy may read: whole lines of 16 bytes."""
        return _aligned(self.weight_bytes)

    @cached_property
    def _vectors(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Elements by name, offsets in bytes by name, and bytes of all."""
        hidden, own = self.shape.hidden, self.q_dim + 2 * self.kv_dim
        lengths = {
            f"{layer} {name}": length
            for layer in range(self.shape.layers)
            for name, length in (("attn_norm", hidden), ("ffn_norm", hidden), ("bias", own))
        }
        lengths["output_norm"] = hidden
        places, size = _places({name: 4 * length for name, length in lengths.items()})
        return lengths, places, size

    def schedule(self) -> list[Entry]:
        """The entries of a step."""
        _, places, _ = self._vectors
        layers = []
        for layer in range(self.shape.layers):
            matrices = {name: self.matrices[f"{layer} {name}"] for name in self.layer_matrices(layer)}
            cache = layer * self.capacity * self.kv_dim * 2
            layers.append(
                Layer(
                    *(places[f"{layer} {name}"] for name in ("attn_norm", "ffn_norm", "bias")),
                    tuple(matrix for name, matrix in matrices.items() if name.startswith("qkv")),
                    *(matrices[name] for name in ("o", "gate_up", "down")),
                    cache, cache,
                )
            )  # fmt: skip
        return model_schedule(layers, places["output_norm"], self.matrices["output"])

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """(shape, dtype) of `arrays` by name."""
        shape, cache = self.shape, (self.shape.layers, self.capacity, self.kv_dim)
        return {
            "weights": ((self._padded_bytes,), "uint8"),
            "vectors": ((self._vectors[2] // 4,), "float32"),
            "keys": (cache, "float16"),
            "values": (cache, "float16"),
            "embedding": ((self.steps, BLOCKS[TABLE].row_bytes(shape.hidden)), "uint8"),
            "ids": ((self.steps,), "int32"),
            "positions": ((self.steps,), "int32"),
            "rope_table": ((self.capacity, shape.head_dim // 2, 2), "float32"),
        }

    def arrays(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """weights uint8; vectors f32; keys, values f16 [layers, capacity, kv_dim]; embedding uint8 [steps,
        row bytes]: a row a token; ids, positions int32 [steps]; rope_table f32. Rows of the caches that no
        step before has filled are NaN."""
        shape, kv = self.shape, self.kv_dim
        weights = np.zeros(self._padded_bytes, np.uint8)
        for matrix in self.matrices.values():
            largest = 1.0 / SPREAD[matrix.format] / matrix.columns**0.5  # outputs as large as inputs
            rows = random_rows(matrix.format, matrix.rows, matrix.columns, rng, -largest, largest)
            weights[matrix.offset : matrix.offset + rows.size] = rows.reshape(-1)
        lengths, places, size = self._vectors
        vectors = np.zeros(size // 4, np.float32)
        for name, length in lengths.items():
            drawn = rng.standard_normal(length)
            start = places[name] // 4
            vectors[start : start + length] = drawn if name.endswith("bias") else 1 + 0.1 * drawn
        caches = rng.standard_normal((2, shape.layers, self.capacity, kv)).astype(np.float16)
        caches[:, :, self.position :] = np.nan
        embedded = 1.0 / SPREAD[TABLE]
        frequencies = ROPE_BASE ** (-np.arange(shape.head_dim // 2) * 2 / shape.head_dim)
        return {
            "weights": weights,
            "vectors": vectors,
            "keys": caches[0],
            "values": caches[1],
            "embedding": random_rows(TABLE, self.steps, shape.hidden, rng, -embedded, embedded),
            "ids": np.arange(self.steps, dtype=np.int32),
            "positions": np.arange(self.position, self.capacity, dtype=np.int32),
            "rope_table": rope_table(frequencies, self.capacity),
        }

    def logits(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """f32 [steps, vocab], one step after the other; the caches that are given stay as they are."""
        known = {
            name: values_of(m.format, _rows(arrays["weights"], m)).astype(np.float64)
            for name, m in self.matrices.items()
        }
        caches = np.stack([arrays["keys"], arrays["values"]])
        return np.stack([self._step(arrays, known, caches, step) for step in range(self.steps)])

    def _step(
        self,
        arrays: Mapping[str, np.ndarray],
        known: Mapping[str, np.ndarray],
        caches: np.ndarray,
        step: int,
    ) -> np.ndarray:
        """The logits of one token, whose rows are added to the caches."""
        head_dim, kv_heads, position = self.shape.head_dim, self.shape.kv_heads, self.position + step
        lengths, places, _ = self._vectors

        def vector(name: str) -> np.ndarray:
            start = places[name] // 4
            return arrays["vectors"][start : start + lengths[name]]

        def product(name: str, x: np.ndarray) -> np.ndarray:
            return known[name] @ reference.quantize_runs(x)

        def normed(x: np.ndarray, name: str) -> np.ndarray:
            return reference.rmsnorm(x, vector(name), EPS)[1]

        x = values_of(TABLE, arrays["embedding"])[step].astype(np.float64)
        for layer in range(self.shape.layers):
            inner = normed(x, f"{layer} attn_norm")
            runs = [name for name in self.layer_matrices(layer) if name.startswith("qkv")]
            row = np.concatenate([product(f"{layer} {name}", inner) for name in runs])
            parts = np.split(row + vector(f"{layer} bias"), [self.q_dim, self.q_dim + self.kv_dim])
            q, k, v = (part.reshape(1, -1, head_dim) for part in parts)
            q, k = (reference.rope(part, [position], arrays["rope_table"], False) for part in (q, k))
            caches[:, layer, position] = k.reshape(-1), v.reshape(-1)
            filled = caches[:, layer, : position + 1].reshape(2, position + 1, kv_heads, head_dim)
            x = x + product(f"{layer} o", reference.attention(q, *filled, position).reshape(-1))
            gate, up = np.split(product(f"{layer} gate_up", normed(x, f"{layer} ffn_norm")), 2)
            x = x + product(f"{layer} down", reference.swiglu(gate, up))
        return product("output", normed(x, "output_norm")).astype(np.float32)


def _places(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Offsets of parts one behind the other, each aligned, and the end of the last."""
    places, end = {}, 0
    for name, size in sizes.items():
        places[name] = end
        end += _aligned(size)
    return places, end


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _rows(weights: np.ndarray, matrix: Matrix) -> np.ndarray:
    """A matrix's blocks, uint8 (rows, bytes)."""
    pitch = BLOCKS[matrix.format].row_bytes(matrix.columns)
    return weights[matrix.offset : matrix.offset + matrix.rows * pitch].reshape(matrix.rows, pitch)
