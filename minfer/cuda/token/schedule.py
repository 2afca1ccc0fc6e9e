"""What the token kernel does, in order: a table of products and attentions, made once a model.

An entry is 8 words: two 64-bit offsets (from the kernel's `weights`, `vectors`, `keys`, `values` arguments),
and what `Entry` says of the rest. Offsets, not addresses: on a GPU every matrix is an allocation of its own
and the offset wraps round; in the simulator all of them lie in one array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.cuda.blocks import BLOCKS
from minfer.cuda.checks import check_whole
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.token.config import TILE_ROWS, TokenConfig
from minfer.cuda.token.records import WEIGHTS

Q4_BYTES, Q6_BYTES = (BLOCKS[format].row_bytes(WEIGHTS) for format in ("Q4_K", "Q6_K"))

SIX_BIT = 1  # Q6_K; else Q4_K
PAIRS = 2  # rows of gate above rows of up; the outputs are their gated activation, as records
NORM = 4  # the activations are the normed residual stream; without WAIT those of the entry before
ATTENDED = 8  # ... the attention's records
ACTIVATED = 16  # ... the gated activations' records
TO_QKV = 32  # the outputs go to the attention's row
TO_LOGITS = 64
ADD = 128  # ... are added to the residual stream
ATTENTION = 256  # no product
WAIT = 512  # wait for all blocks first: the entry reads what the one before has written
ARRIVE = 1024  # tell all blocks afterwards


@dataclass(frozen=True)
class Entry:
    """One entry. Offsets are bytes.

    Attributes:
        flags: of the above.
        matrix: of the weights; for an attention of the keys.
        vector: of the norm's gains; for an attention of the biases.
        values: of an attention's values.
        rows: outputs of the product.
        units: blocks of weights a row.
        first: where in the attention's row the outputs begin.
    """

    flags: int
    matrix: int
    vector: int = 0
    values: int = 0
    rows: int = 0
    units: int = 0
    first: int = 0

    def words(self, config: TokenConfig) -> list[int]:
        low = self.matrix, self.vector, self.values
        split = [half for value in low for half in (value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF)]
        if self.flags & ATTENTION:
            return [*split, self.flags, 0]
        return [*split[:4], self.rows, self.first, self.flags, self.shape(config)]

    def shape(self, config: TokenConfig) -> int:
        """What a block needs to know of the product's tiles, in a word: blocks of weights a row (8 bits),
        outputs of a tile (6), 65536 over the groups of a row's blocks, rounded up (17)."""
        check_whole("decode_token: blocks of weights a row", self.units, 1, 255)
        pitch = self.units * (Q6_BYTES if self.flags & SIX_BIT else Q4_BYTES)
        rows = min(TILE_ROWS, config.tile_bytes // pitch)
        each = rows // 2 if self.flags & PAIRS else rows
        return self.units | each << 8 | (65536 // config.row_groups(self.units * WEIGHTS) + 1) << 14


def table(entries: list[Entry], config: TokenConfig) -> NDArray[np.uint32]:
    """uint32 [entries, 8]. Refuses (ConfigRefused) another number of entries than the kernel reads."""
    if len(entries) != config.entries:
        raise ConfigRefused(
            f"decode_token: a schedule of {len(entries)} entries; the kernel reads {config.entries}"
        )
    return np.array([entry.words(config) for entry in entries], np.uint32)


@dataclass(frozen=True)
class Matrix:
    """Quantized blocks at an offset: rows of `columns` weights, `format` Q4_K or Q6_K."""

    offset: int
    format: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Layer:
    """A layer's parts, offsets in bytes; qkv: the stacked rows of q, k and v, a matrix for every run of one
    format; gate_up: the rows of gate above those of up."""

    attn_norm: int
    ffn_norm: int
    bias: int
    qkv: tuple[Matrix, ...]
    o: Matrix
    gate_up: Matrix
    down: Matrix
    keys: int
    values: int


def _product(matrix: Matrix, flags: int, rows: int | None = None, **rest: int) -> Entry:
    six = SIX_BIT if matrix.format == "Q6_K" else 0
    return Entry(flags | six, matrix.offset, rows=rows or matrix.rows, units=matrix.columns // 256, **rest)


def model_schedule(layers: list[Layer], output_norm: int, output: Matrix) -> list[Entry]:
    """The entries of a whole model's step."""
    entries = []
    for layer in layers:
        entries += _qkv(layer)
        entries += [
            Entry(ATTENTION | WAIT | ARRIVE, layer.keys, layer.bias, layer.values),
            _product(layer.o, ATTENDED | WAIT | ADD | ARRIVE),
            _product(
                layer.gate_up, NORM | WAIT | PAIRS | ARRIVE, layer.gate_up.rows // 2, vector=layer.ffn_norm
            ),
            _product(layer.down, ACTIVATED | WAIT | ADD | ARRIVE),
        ]
    return [*entries, _product(output, NORM | WAIT | TO_LOGITS, vector=output_norm)]


def _qkv(layer: Layer) -> list[Entry]:
    """The stacked projections: one product a format, on the same activations."""
    entries, first = [], 0
    for n, matrix in enumerate(layer.qkv):
        flags = NORM | TO_QKV | (WAIT if n == 0 else 0)
        if n == len(layer.qkv) - 1:
            flags |= ARRIVE
        entries.append(_product(matrix, flags, vector=layer.attn_norm, first=first))
        first += matrix.rows
    return entries
