"""A Q4_K block, byte by byte: 256 weights in 144 bytes out of a real model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.patches import Rectangle

from minfer.lab import style
from minfer.lab.picture import Picture

FILE = Path(__file__).resolve().parents[2] / "data" / "qwen2-tiny.gguf"
TENSOR = "blk.0.ffn_gate.weight"
BLOCK_BYTES, WEIGHTS, RUN = 144, 256, 32
COPY_BYTES = 16
"""A cp.async of the raw kernel: a block is nine of them."""


@dataclass(frozen=True)
class Field:
    """A part of the block: bytes `start` to `stop`."""

    name: str
    start: int
    stop: int
    colour: str
    what: str

    @property
    def size(self) -> int:
        return self.stop - self.start


FIELDS = (
    Field("d", 0, 2, style.BLUE, "f16: scale of the eight 6-bit scales"),
    Field("dmin", 2, 4, style.GREEN, "f16: scale of the eight 6-bit minima"),
    Field("scales", 4, 16, style.ORANGE, "eight 6-bit scales and eight 6-bit minima, packed"),
    Field("quants", 16, 144, style.SKY, "256 nibbles, two weights a byte"),
)


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        raw: its 144 bytes. row, place: which row of the tensor, and which block of the row.
    """

    raw: bytes
    row: int = 0
    place: int = 0

    @property
    def d(self) -> float:
        return float(np.frombuffer(self.raw, np.float16, 1, 0)[0])

    @property
    def dmin(self) -> float:
        return float(np.frombuffer(self.raw, np.float16, 1, 2)[0])

    def scale(self, run: int) -> tuple[int, int]:
        """(scale, minimum) of a run of 32 weights, 0 to 63: llama.cpp's get_scale_min_k4."""
        packed = self.raw[4:16]
        if run < 4:
            return packed[run] & 63, packed[run + 4] & 63
        low, upper_scale, upper_minimum = packed[run + 4], packed[run - 4] >> 6, packed[run] >> 6
        return (low & 15) | upper_scale << 4, (low >> 4) | upper_minimum << 4

    def place_of(self, weight: int) -> tuple[int, int]:
        """(byte, shift) of a weight's nibble."""
        pair, inside = divmod(weight, 2 * RUN)
        return 16 + pair * RUN + inside % RUN, 4 * (inside // RUN)

    def quant(self, weight: int) -> int:
        """A weight's nibble, 0 to 15."""
        byte, shift = self.place_of(weight)
        return self.raw[byte] >> shift & 15

    def weight(self, weight: int) -> float:
        """A weight: d * scale * nibble - dmin * minimum."""
        scale, minimum = self.scale(weight // RUN)
        return self.d * scale * self.quant(weight) - self.dmin * minimum


def real_block(row: int = 0, place: int = 0) -> Block:
    """A block of a weight matrix of the model that comes with the project.

    Raises:
        ValueError: the matrix has no such row or block.
    """
    from minfer.model.model import Model

    matrix = Model.load(FILE).file.raw(TENSOR)
    blocks = matrix.reshape(matrix.shape[0], -1, BLOCK_BYTES)
    if not (0 <= row < blocks.shape[0] and 0 <= place < blocks.shape[1]):
        raise ValueError(
            f"row {row}, block {place}: {TENSOR} has {blocks.shape[0]} rows of {blocks.shape[1]} blocks"
        )
    return Block(blocks[row, place].tobytes(), row, place)


def by_the_model(block: Block) -> np.ndarray:
    """The block's 256 weights by the project's own dequantizer, f32."""
    from minfer.model.model import Model

    values = Model.load(FILE).file.dequantized(TENSOR)
    return values[block.row].reshape(-1, WEIGHTS)[block.place]


def field_rows(block: Block) -> list[dict]:
    """The block's fields with their bytes and what they say."""
    said = {
        "d": f"{block.d:.6g}",
        "dmin": f"{block.dmin:.6g}",
        "scales": " ".join(str(block.scale(run)) for run in range(8)),
        "quants": " ".join(str(block.quant(i)) for i in range(8)) + " ...",
    }
    return [
        {
            "bytes": f"{field.start}-{field.stop - 1}",
            "size (B)": field.size,
            "field": field.name,
            "what": field.what,
            "here": said[field.name],
        }
        for field in FIELDS
    ]


def field_of(at: int) -> Field:
    """The field that a byte belongs to. Raises ValueError outside the block."""
    for field in FIELDS:
        if field.start <= at < field.stop:
            return field
    raise ValueError(f"byte {at}: a Q4_K block has bytes 0 to {BLOCK_BYTES - 1}")


def weights_of(at: int) -> list[int]:
    """The weights that a byte has a say in."""
    name = field_of(at).name
    if name in ("d", "dmin"):
        return list(range(WEIGHTS))
    if name == "scales":
        return [i for run in _runs_of(at) for i in range(run * RUN, (run + 1) * RUN)]
    pair, inside = divmod(at - 16, RUN)
    return [pair * 2 * RUN + inside, pair * 2 * RUN + RUN + inside]


def _runs_of(at: int) -> list[int]:
    place = at - 4
    return [place % 4 + 4] if place >= 8 else [place % 4, place % 4 + 4]


def meaning(block: Block, at: int) -> list[dict]:
    """What the bits of a byte say, a row each: bits, what, value."""
    byte, name = block.raw[at], field_of(at).name
    if name in ("d", "dmin"):
        half = "lower" if at % 2 == 0 else "upper"
        value = block.d if name == "d" else block.dmin
        return [{"bits": "0-7", "what": f"{half} byte of {name}, an f16", "value": f"{name} = {value:.6g}"}]
    if name == "scales":
        return _scale_bits(block, at - 4, byte)
    rows = []
    for weight, bits in zip(weights_of(at), ("0-3", "4-7"), strict=True):
        scale, minimum = block.scale(weight // RUN)
        formula = f"d·{scale}·{block.quant(weight)} - dmin·{minimum} = {block.weight(weight):+.5f}"
        rows.append({"bits": bits, "what": f"weight {weight}, run {weight // RUN}", "value": formula})
    return rows


def _scale_bits(block: Block, place: int, byte: int) -> list[dict]:
    kind, run = ("scale", "minimum", "both")[place // 4], place % 4
    if kind == "both":
        scale, minimum = block.scale(run + 4)
        return [
            {
                "bits": "0-3",
                "what": f"lower four bits of scale {run + 4}",
                "value": f"{byte & 15} of {scale}",
            },
            {
                "bits": "4-7",
                "what": f"lower four bits of minimum {run + 4}",
                "value": f"{byte >> 4} of {minimum}",
            },
        ]
    which = 0 if kind == "scale" else 1
    upper = block.scale(run + 4)[which]
    return [
        {"bits": "0-5", "what": f"{kind} {run}", "value": str(block.scale(run)[which])},
        {
            "bits": "6-7",
            "what": f"upper two bits of {kind} {run + 4}",
            "value": f"{(byte >> 6) << 4} of {upper}",
        },
    ]


def partners(at: int) -> set[int]:
    """The other bytes that take part in the weights of a byte."""
    bytes_: set[int] = set()
    for weight in weights_of(at):
        run = weight // RUN
        bytes_ |= {0, 1, 2, 3, 16 + (weight // (2 * RUN)) * RUN + weight % RUN}
        bytes_ |= {4 + run, 8 + run} if run < 4 else {8 + run, run, 4 + run}
    return bytes_ - {at}


def draw_block(block: Block, at: int) -> Picture:
    """The 144 bytes, 16 a line as cp.async copies them, one outlined with those it works with; beside them
    the weights, those that it has a say in marked."""
    fig, (left, right) = style.figure(9.6, 4.4, columns=2, width_ratios=(1.25, 1))
    lines = BLOCK_BYTES // COPY_BYTES
    colours = np.ones((lines, COPY_BYTES, 3))
    for byte in range(BLOCK_BYTES):
        shade = 0.45 if byte in partners(at) and len(weights_of(at)) <= RUN * 2 else 0.75
        colours[divmod(byte, COPY_BYTES)] = style.tint(field_of(byte).colour, shade)
    style.bare(left)
    style.cells(left, colours)
    for byte, value in enumerate(block.raw):
        line, column = divmod(byte, COPY_BYTES)
        style.write(left, column + 0.5, line + 0.54, f"{value:02x}", fontsize=7.5, family="monospace")
    line, column = divmod(at, COPY_BYTES)
    left.add_patch(Rectangle((column, line), 1, 1, fill=False, edgecolor=style.RED, linewidth=2.2, zorder=4))
    left.set_xlim(-0.1, COPY_BYTES + 0.1)
    left.set_ylim(lines + 0.1, -0.1)
    left.set_xticks([c + 0.5 for c in range(COPY_BYTES)], range(COPY_BYTES))
    left.set_yticks([r + 0.5 for r in range(lines)], [COPY_BYTES * r for r in range(lines)])
    left.tick_params(length=0)
    style.label(left, "byte of a 16-byte copy", "first byte of the copy")
    field = field_of(at)
    style.title(left, f"byte {at} = 0x{block.raw[at]:02x}, of {field.name}", field.what)
    rows = [
        {"weight": i, "value": block.weight(i), "touched": i in set(weights_of(at))} for i in range(WEIGHTS)
    ]
    _draw_weights(right, rows)
    touched = sum(row["touched"] for row in rows)
    style.title(right, f"it has a say in {touched} of 256 weights", "runs of 32 share a scale and a minimum")
    where = f"row {block.row}, block {block.place}"
    return Picture(fig, f"The bytes of a Q4_K block ({where}), byte {at} outlined, and its weights", rows)


def _draw_weights(ax, rows: list[dict]) -> None:
    for touched, colour, size in ((False, style.RULE, 7), (True, style.RED, 14)):
        mine = [row for row in rows if row["touched"] == touched]
        ax.scatter(
            [row["weight"] for row in mine], [row["value"] for row in mine], s=size, color=colour, zorder=3
        )
    ax.set_xticks(range(0, WEIGHTS + 1, RUN))
    ax.set_xlim(-4, WEIGHTS + 4)
    style.label(ax, "weight of the block", "value")
