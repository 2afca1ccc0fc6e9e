"""Configs of the decode GEMV (`minfer.cuda.gemv`): rings of slots in shared memory, and which for a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minfer.cuda.block_dots import DOTS, BlockDot
from minfer.cuda.blocks import BLOCKS, block_of
from minfer.cuda.checks import blocks_for, check_choice, check_sizes, check_types, check_whole
from minfer.cuda.gemv_planes import PLANES, slice_bytes
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.q8 import q8_record_bytes

SHARED_LIMIT = 99 * 1024
"""A block's on the smallest devices (sm_86, sm_89, sm_120); two such blocks fit an H100's SM."""
SM_90_SHARED = 228 * 1024
"""An SM's of sm_90, of which each block takes 1 KB more than it asks for."""
BARRIER_BYTES = 16
"""What an mbarrier takes beside what it guards, which is aligned to 16 bytes."""
SLICE_BYTES = 8192
"""What `for_shape` slices rows into at most, about."""
ROWS_BYTES = 12288
"""What `for_shape` takes of whole rows at a time at most."""
MMA_ROWS = 16
"""Rows of an mma's A."""
ZEROS_BYTES = 320
"""What lanes without activations read instead of a block's records."""
SCHEDULERS = 4
"""Of an SM: the warps of a block are dealt to them in turn."""


@dataclass(frozen=True)
class GemvConfig:
    """y[od] = W[od, dim] x[dim] (+ addend[od]).

    Attributes:
        format: W's block format (a key of `minfer.cuda.blocks.BLOCKS`).
        dim: weights a row.
        rows: rows that a warp takes at a time, a power of two; they share its lanes.
        slices: parts that a row is copied in, one after another (rows == 1 only).
        warps: warps a block.
        slots: copies that a warp has in flight.
        addend: add a vector (a bias, or the residual stream).
        pdl: programmatic dependent launch (sm_90): the weights stream in, by bulk copies, while the kernel
            before still runs; launch with `pdl=True`.
        resident: blocks an SM that the grid is sized for.
        layout: "blocks", as they lie in a file, or "planes", repacked at load time by slices of these configs
            (`minfer.cuda.gemv_planes`; Q6_K).
        dots: "dp4a", or "mma", on tensor cores (`minfer.cuda.gemv_mma`; 16 whole rows of Q4_K at a time).
    """

    format: str
    dim: int
    rows: int = 1
    slices: int = 1
    warps: int = 4
    slots: int = 2
    addend: bool = False
    pdl: bool = False
    resident: int = 2
    layout: str = "blocks"
    dots: str = "dp4a"

    def __post_init__(self) -> None:
        check_types("gemv", self)
        block_of("gemv", self.format)
        check_choice("gemv", "layout", self.layout, ("blocks", "planes"))
        if self.layout == "planes" and self.format not in PLANES:
            raise ConfigRefused(f"gemv: {self.format} in planes; only {', '.join(PLANES)} is repacked")
        unit = self.dot.weights
        if self.dim <= 0 or self.dim % unit:
            raise ConfigRefused(f"gemv: rows of {self.dim} {self.format} weights; take a multiple of {unit}")
        check_choice("gemv", "dots", self.dots, ("dp4a", "mma"))
        if self.dots == "mma" and (self.format != "Q4_K" or self.slices > 1):
            raise ConfigRefused(
                f"gemv: {self.slices} slices of {self.format} on tensor cores; take whole rows of Q4_K"
            )
        legal = (MMA_ROWS,) if self.dots == "mma" else [2**i for i in range(self.lane_groups.bit_length())]
        check_choice("gemv", "rows", self.rows, tuple(legal))
        check_choice("gemv", "warps", self.warps, tuple(range(1, 17)))
        check_choice("gemv", "slots", self.slots, (1, 2, 3, 4))
        check_whole("gemv: resident blocks an SM", self.resident, 1, 32)
        if not 1 <= self.slices <= self.blocks or (self.slices > 1 and self.rows > 1):
            raise ConfigRefused(
                f"gemv: {self.slices} slices of {self.blocks} units with {self.rows} rows; take 1 of either"
            )
        if self.slices > 1 and (self.slices - 1) * self.slice_blocks >= self.blocks:
            raise ConfigRefused(
                f"gemv: {self.slices} slices of {self.blocks} blocks leave the last one empty; take fewer"
            )
        limit = SM_90_SHARED // self.resident - 1024 if self.pdl else SHARED_LIMIT
        if self.shared_bytes > limit:
            raise ConfigRefused(
                f"gemv: {self.shared_bytes} bytes of shared memory a block, the limit is {limit}: "
                "take fewer rows, warps or slots, or more slices"
            )

    def __str__(self) -> str:
        extra = (" planes" if self.layout == "planes" else "") + (" addend" if self.addend else "")
        extra += " pdl" if self.pdl else ""
        extra += " mma" if self.dots == "mma" else ""
        extra += f" resident={self.resident}" if self.resident != 2 else ""
        tile = f"rows={self.rows} slices={self.slices} warps={self.warps} slots={self.slots}"
        return f"{self.format} dim={self.dim} {tile}{extra}"

    @property
    def dot(self) -> BlockDot:
        """How a warp takes blocks."""
        return (PLANES if self.layout == "planes" else DOTS)[self.format]

    @property
    def lane_groups(self) -> int:
        """Blocks that a warp works on at a time."""
        return 32 // self.dot.lanes

    @property
    def blocks(self) -> int:
        """Units of work a row: quantized blocks, or 16 bytes of plain weights."""
        return self.dim // self.dot.weights

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of work."""
        return BLOCKS[self.format].row_bytes(self.dot.weights)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of W."""
        before = self.slices - 1
        return before * self.slice_bytes + self._bytes(self.blocks - before * self.slice_blocks)

    @property
    def slice_blocks(self) -> int:
        """Units of a slice; the last slice may have fewer."""
        return -(-self.blocks // self.slices)

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice; the last slice may have fewer."""
        return self._bytes(self.slice_blocks)

    def _bytes(self, units: int) -> int:
        return slice_bytes(units) if self.layout == "planes" else units * self.unit_bytes

    @property
    def copy_bytes(self) -> int:
        """Bytes of one copy."""
        return self.rows * self.slice_bytes

    @property
    def body_bytes(self) -> int:
        """Bytes of a slot that a copy fills: it starts at the 16-byte line that holds its first byte."""
        slack = 0 if self.layout == "planes" or self.unit_bytes % 16 == 0 else 15
        return -(-(self.copy_bytes + slack) // 16) * 16

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: with its mbarrier, with pdl."""
        return self.body_bytes + self.pdl * BARRIER_BYTES

    @property
    def early(self) -> int:
        """Slots of a warp that are asked for before the activations, which arrive behind whatever was asked
        for before them."""
        return max(1, self.slots // 2)

    @property
    def x_bytes(self) -> int:
        """Bytes of the staged activations."""
        return _x_bytes(self.format, self.dim)

    @property
    def ring_at(self) -> int:
        """Of shared memory: the warps' rings, behind the activations and, for tensor cores, zeros."""
        return self.x_bytes + (ZEROS_BYTES if self.dots == "mma" else 0)

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Activations, then a ring of slots a warp."""
        return self.ring_at + self.warps * self.slots * self.slot_bytes

    def grid(self, od: int, sms: int = 132) -> tuple[int, int, int]:
        """Blocks that stay: `resident` an SM, fewer if there are fewer row groups."""
        return (min(self.resident * sms, blocks_for("gemv: od", od, self.rows)), 1, 1)

    @classmethod
    def for_shape(
        cls,
        format: str,
        dim: int,
        od: int,
        addend: bool = False,
        pdl: bool = False,
        sms: int = 132,
        shared: int = SM_90_SHARED - 1024,
    ) -> GemvConfig:
        """A good config for a matrix [od, dim]: slots of some kilobytes that keep all lanes busy, and
        enough of them in flight, with pdl in the `shared` bytes that a block may have of a device with `sms`
        SMs. Raises ConfigRefused where a row of this format cannot be."""
        check_sizes("gemv", od=od, sms=sms, shared=shared)
        slices = _slices(format, dim, shared if pdl else SHARED_LIMIT)
        rows = _rows(format, dim, od, sms) if slices == 1 else 1
        one = cls(format, dim, rows, slices, 1, 1, addend, pdl, resident=1)
        if pdl:
            if one.shared_bytes > shared:
                raise ConfigRefused(
                    f"gemv: {one.shared_bytes} bytes of shared memory of {shared}: rows of {dim} are too long"
                )
            return one._overlapping(_ceil(od, rows), sms, shared)
        for slots, warps in ((2, 8), (2, 7), (2, 6), (2, 5), (2, 4), (1, 8), (1, 4), (1, 2), (1, 1)):
            if one.x_bytes + warps * slots * one.slot_bytes <= SHARED_LIMIT:
                return replace(one, warps=warps, slots=slots, resident=2)
        raise ConfigRefused(
            f"gemv: {one.x_bytes} bytes of activations and slots of {one.slot_bytes} do not fit "
            f"{SHARED_LIMIT} bytes of shared memory: rows of {dim} are too long"
        )

    def _overlapping(self, groups: int, sms: int, shared: int) -> GemvConfig:
        """This config, of one warp and slot, for a matrix of so many row groups.

        A large matrix takes whole SMs: one block of as many slots as fit, with as many warps on each of the
        schedulers. A small one is in flight as a whole, a row group a warp, in blocks small enough for the
        next kernel's to fit beside them.
        """
        whole = self.slices * self.slot_bytes
        small = [
            replace(self, warps=share, slots=self.slices, resident=resident)
            for resident in (3, 2, 1)
            if (share := _ceil(groups, resident * sms)) <= min(16, 24 // resident)  # more: few registers
            and self.slices <= 4
            and resident * (self.x_bytes + share * whole + 1024) <= shared // 2
        ]
        if small:
            return max(small, key=lambda c: groups / (c.resident * c.warps))
        share = _ceil(groups, sms)
        slots = 2 if self.x_bytes + 8 * self.slot_bytes <= shared else 1
        most = (shared - self.x_bytes) // (slots * self.slot_bytes)
        most = max(1, min(16, most))
        warps = _ceil(share, _ceil(share, most))
        if most >= SCHEDULERS:
            warps = min(_ceil(warps, SCHEDULERS), most // SCHEDULERS) * SCHEDULERS
        return replace(self, warps=warps, slots=slots)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _units(format: str, dim: int) -> tuple[int, int, int]:
    """(units a row, their bytes, units that a warp works on at a time)."""
    block_of("gemv", format)
    unit = DOTS[format].weights
    return max(1, dim // unit), BLOCKS[format].row_bytes(unit), 32 // DOTS[format].lanes


def _x_bytes(format: str, dim: int) -> int:
    return q8_record_bytes(dim) if DOTS[format].quantized else dim * 4


def _slices(format: str, dim: int, shared: int) -> int:
    """Slices that bring a copy of one row down to SLICE_BYTES, and to what lets 6 warps have two slots in so
    many bytes; among up to twice as many, the number that idles the fewest lanes."""
    units, size, lanes = _units(format, dim)
    room = max(size, min(SLICE_BYTES, (shared - _x_bytes(format, dim)) // 12))
    least = _ceil(units * size, room)
    legal = [s for s in range(least, 2 * least + 1) if s == 1 or (s - 1) * _ceil(units, s) < units]
    return min(legal or [1], key=lambda s: (s * _ceil(_ceil(units, s), lanes), s))


def _rows(format: str, dim: int, od: int, sms: int) -> int:
    """Rows at a time whose copy is within ROWS_BYTES, that leave work for 12 warps an SM, and idle the fewest
    lanes; of equals the most."""
    units, size, lanes = _units(format, dim)
    legal = [
        2**i for i in range(lanes.bit_length()) if 2**i * units * size <= ROWS_BYTES and od >> i >= 12 * sms
    ]
    return max(legal or [1], key=lambda rows: (units / _ceil(units, lanes // rows) / (lanes // rows), rows))
