"""Decode GEMV straight from quantized blocks: y = dequantize(W) x, one token.

Weights are read once, so everything serves the memory stream. A warp owns groups of rows, whose bytes are
contiguous; it copies them by cp.async, 16 bytes a lane, into a ring of slots of its own in shared memory:
some 100 KB are in flight in a block, for no registers, and no warp waits for another. Blocks are then
multiplied out of shared memory with dp4a (`minfer.cuda.block_dots`), whatever their alignment. The
activations are q8 records (`minfer.cuda.q8`), staged once a block; f16, bf16 and f32 weights take f32
activations and FMAs instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.block_dots import DOTS
from minfer.cuda.blocks import BLOCKS, block_of
from minfer.cuda.checks import blocks_for, check_choice, check_types, check_whole
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.q8 import q8_record_bytes

SHARED_LIMIT = (
    99 * 1024
)  # a block's on the smallest devices (sm_86, sm_89, sm_120); two such blocks fit an H100's SM
SLOT_BYTES = 8192  # what `for_shape` makes slots of at most, about


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
        pdl: programmatic dependent launch (sm_90): the weights stream in while the kernel before still runs;
            launch with `pdl=True`.
        resident: blocks an SM that the grid is sized for.
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

    def __post_init__(self) -> None:
        check_types("gemv", self)
        block_of("gemv", self.format)
        unit = DOTS[self.format].weights
        if self.dim <= 0 or self.dim % unit:
            raise ConfigRefused(f"gemv: rows of {self.dim} {self.format} weights; take a multiple of {unit}")
        check_choice("gemv", "rows", self.rows, tuple(2**i for i in range(self.lane_groups.bit_length())))
        check_choice("gemv", "warps", self.warps, tuple(range(1, 17)))
        check_choice("gemv", "slots", self.slots, (1, 2, 3, 4))
        check_whole("gemv: resident blocks an SM", self.resident, 1)
        if not 1 <= self.slices <= self.blocks or (self.slices > 1 and self.rows > 1):
            raise ConfigRefused(
                f"gemv: {self.slices} slices of {self.blocks} units with {self.rows} rows; take 1 of either"
            )
        if self.slices > 1 and (self.slices - 1) * self.slice_blocks >= self.blocks:
            raise ConfigRefused(
                f"gemv: {self.slices} slices of {self.blocks} blocks leave the last one empty; take fewer"
            )
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigRefused(
                f"gemv: {self.shared_bytes} bytes of shared memory a block, the limit is {SHARED_LIMIT}: "
                "take fewer rows, warps or slots, or more slices"
            )

    def __str__(self) -> str:
        extra = (" addend" if self.addend else "") + (" pdl" if self.pdl else "")
        tile = f"rows={self.rows} slices={self.slices} warps={self.warps} slots={self.slots}"
        return f"{self.format} dim={self.dim} {tile}{extra}"

    @property
    def lane_groups(self) -> int:
        """Blocks that a warp works on at a time."""
        return 32 // DOTS[self.format].lanes

    @property
    def blocks(self) -> int:
        """Units of work a row: quantized blocks, or 16 bytes of plain weights."""
        return self.dim // DOTS[self.format].weights

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of work."""
        return BLOCKS[self.format].row_bytes(DOTS[self.format].weights)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of W."""
        return self.blocks * self.unit_bytes

    @property
    def slice_blocks(self) -> int:
        """Units of a slice; the last slice may have fewer."""
        return -(-self.blocks // self.slices)

    @property
    def copy_bytes(self) -> int:
        """Bytes of one copy."""
        return self.rows * self.slice_blocks * self.unit_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: a copy starts at the 16-byte line that holds its first byte."""
        slack = 0 if self.unit_bytes % 16 == 0 else 15
        return -(-(self.copy_bytes + slack) // 16) * 16

    @property
    def x_bytes(self) -> int:
        """Bytes of the staged activations."""
        return _x_bytes(self.format, self.dim)

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Activations, then a ring of slots a warp."""
        return self.x_bytes + self.warps * self.slots * self.slot_bytes

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
    ) -> GemvConfig:
        """A good config for a matrix [od, dim]: slots of some kilobytes that keep all lanes busy, and
        enough of them in flight. Raises ConfigRefused where a row of this format cannot be."""
        slices = _slices(format, dim)
        rows = _rows(format, dim, od, sms) if slices == 1 else 1
        one = cls(format, dim, rows, slices, warps=1, slots=1)
        for slots, warps in ((2, 8), (2, 7), (2, 6), (2, 5), (2, 4), (1, 8), (1, 4), (1, 2), (1, 1)):
            if one.x_bytes + warps * slots * one.slot_bytes <= SHARED_LIMIT:
                return cls(format, dim, rows, slices, warps, slots, addend, pdl)
        raise ConfigRefused(
            f"gemv: {one.x_bytes} bytes of activations and slots of {one.slot_bytes} do not fit "
            f"{SHARED_LIMIT} bytes of shared memory: rows of {dim} are too long"
        )


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _units(format: str, dim: int) -> tuple[int, int, int]:
    """(units a row, their bytes, units that a warp works on at a time)."""
    block_of("gemv", format)
    unit = DOTS[format].weights
    return max(1, dim // unit), BLOCKS[format].row_bytes(unit), 32 // DOTS[format].lanes


def _x_bytes(format: str, dim: int) -> int:
    return q8_record_bytes(dim) if DOTS[format].quantized else dim * 4


def _slices(format: str, dim: int) -> int:
    """Slices that bring a copy of one row down to SLOT_BYTES, and to what lets 6 warps have two slots; among
    up to twice as many, the number that idles the fewest lanes."""
    units, size, lanes = _units(format, dim)
    room = max(size, min(SLOT_BYTES, (SHARED_LIMIT - _x_bytes(format, dim)) // 12))
    least = _ceil(units * size, room)
    legal = [s for s in range(least, 2 * least + 1) if s == 1 or (s - 1) * _ceil(units, s) < units]
    return min(legal or [1], key=lambda s: (s * _ceil(_ceil(units, s), lanes), s))


def _rows(format: str, dim: int, od: int, sms: int) -> int:
    """Rows at a time whose copy is within SLOT_BYTES, that leave work for 8 warps an SM, and idle the fewest
    lanes; of equals the most."""
    units, size, lanes = _units(format, dim)
    legal = [
        2**i for i in range(lanes.bit_length()) if 2**i * units * size <= SLOT_BYTES and od >> i >= 8 * sms
    ]
    return max(legal or [1], key=lambda rows: (units / _ceil(units, lanes // rows) / (lanes // rows), rows))


def gemv(config: GemvConfig) -> Kernel:
    """y = dequantize(W) x (+ addend).

    Arguments: weights uint8 [od, row bytes] (16-byte aligned, GGML blocks), x uint8 q8 records of dim
    activations, or f32 [dim] for F32, F16, BF16 weights, (addend f32 [od], may be y,) y f32 [od], od int32
    (any). Integer dot products are exact; sums over blocks are f32 in a fixed order: the same bits on every
    run. After gemv_q4k and final_gemv of the feasibility study, with cp.async in place of bulk copies.
    """
    dot = DOTS[config.format]
    device_dot, lanes, quantized = dot.dot, dot.lanes, dot.quantized
    wide = quantized and dot.weights == 256
    unit_x = 320 if wide else dot.weights * 4
    rows, slices, warps, slots = config.rows, config.slices, config.warps, config.slots
    blocks, slice_blocks, unit, row_bytes = (
        config.blocks,
        config.slice_blocks,
        config.unit_bytes,
        config.row_bytes,
    )
    across = config.lane_groups // rows  # units of one row at a time
    row_lanes = across * lanes
    steps = -(-slice_blocks // across)
    whole = slices * slice_blocks == blocks and slice_blocks % across == 0
    slot_bytes, x_bytes, threads = config.slot_bytes, config.x_bytes, config.threads
    copy_rounds = -(-(slot_bytes // 16) // 32)
    x_rounds = -(-(x_bytes // 16) // threads)
    added, dependent, start = config.addend, config.pdl, dependent_start(config.pdl)
    shuffles = row_lanes.bit_length() - 1
    wait_ring = ptx.cp_async_wait_group(slots - 1)
    wait_first = ptx.cp_async_wait_group(slots)
    wait_all = ptx.cp_async_wait_group(0)

    @device_function
    def stage_x(shared, source):
        for i in range(x_rounds):
            chunk = int32(cuda.threadIdx.x) + i * threads
            if chunk < x_bytes // 16:
                ptx.cp_async_cg_16(shared + uint32(chunk * 16), source + uint64(chunk * 16), uint32(16))
        ptx.cp_async_commit()

    @device_function
    def place(matrix, row, part):
        """Address of slice `part` of a row."""
        return matrix + uint64(row) * uint64(row_bytes) + uint64(part * (slice_blocks * unit))

    @device_function
    def copy(slot, matrix, od, group, part, wanted):
        """Start the copy of a row group's slice, if it is wanted; one commit in any case."""
        if wanted:
            row = group * rows
            address = place(matrix, row, part)
            length = int32(min(rows, od - row)) * row_bytes
            if slices > 1:
                length = min(int32(slice_blocks * unit), int32(row_bytes - part * (slice_blocks * unit)))
            start = address & uint64(0xFFFFFFFFFFFFFFF0)
            # From the line's start: what is to be copied, and how far the matrix goes.
            span = int32(address - start) + length
            left = int32(min(matrix + uint64(od) * uint64(row_bytes) - start, uint64(0x40000000)))
            for i in range(copy_rounds):
                at = (int32(ptx.lane_id()) + i * 32) * 16
                if at < span:
                    ptx.cp_async_cg_16(slot + uint32(at), start + uint64(at), uint32(min(16, left - at)))
        ptx.cp_async_commit()

    @device_function
    def unit_dot(block, x, index, part):
        """The unit with this index in its row: its block's shared address, and where its activations are."""
        if wide:
            return device_dot(block, x + uint32(index * unit_x), part)
        if quantized:
            return device_dot(block, x + uint32((index >> 1) * 80), index & 1)
        return device_dot(block, x + uint32(index * unit_x), part)

    @device_function
    def multiply(weights, x, addend, y, od):
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ring = shared + uint32(x_bytes + warp * (slots * slot_bytes))
        # Contiguous row groups a block, dealt to its warps in turn.
        groups = int32((od + (rows - 1)) // rows)
        share = int32(ptx.udiv_u32(groups, cuda.gridDim.x))
        extra = groups - share * int32(cuda.gridDim.x)
        block = int32(cuda.blockIdx.x)
        first = block * share + min(block, extra) + warp
        last = (block + 1) * share + min(block + 1, extra)
        turns = 0
        if first < last:
            turns = (last - first + (warps - 1)) // warps * slices
        if not dependent:
            stage_x(shared, x)
        for n in range(slots):
            copy(
                ring + uint32(n * slot_bytes), weights, od, first + n // slices * warps, n % slices, n < turns
            )
        if dependent:
            start()
            stage_x(shared, x)
            wait_all()
        else:
            wait_first()
        cuda.syncthreads()
        row_in_group = lane // row_lanes
        unit_in_step = (lane & (row_lanes - 1)) // lanes
        part = lane & (lanes - 1)
        total = float32(0)
        slot = uint32(0)
        for n in range(turns):
            group = first + n // slices * warps
            slice_ = n % slices
            row = group * rows + row_in_group
            wait_ring()
            ptx.syncwarp()
            here = ring + slot + uint32(row_in_group * row_bytes)
            here += uint32(place(weights, group * rows, slice_) & uint64(15))
            count = min(int32(slice_blocks), int32(blocks - slice_ * slice_blocks))
            if row < od:
                for step in range(steps):
                    index = unit_in_step + step * across
                    if whole or index < count:
                        total += unit_dot(
                            here + uint32(index * unit), shared, slice_ * slice_blocks + index, part
                        )
            ptx.syncwarp()
            following = n + slots
            copy(
                ring + slot,
                weights,
                od,
                first + following // slices * warps,
                following % slices,
                following < turns,
            )
            slot += uint32(slot_bytes)
            if slot == uint32(slots * slot_bytes):
                slot = uint32(0)
            if slice_ == slices - 1:
                for step in range(shuffles):
                    total += ptx.shfl_xor_f32(total, uint32(1 << step))
                if (lane & (row_lanes - 1)) == 0 and row < od:
                    at = uint64(row) * uint64(4)
                    if added:
                        total += ptx.ld_global_f32(addend + at)
                    ptx.st_global_f32(y + at, total)
                total = float32(0)

    def gemv_rows(weights, x, addend, y, od):
        multiply(address(weights), address(x), address(addend), address(y), od)

    address = ptx.global_address
    arguments = (
        Argument("weights", "in", "uint8"),
        Argument("x", "in", "uint8" if quantized else "float32"),
        Argument("addend", "in", "float32", present=added),
        Argument("y", "out", "float32"),
        Argument("od", "scalar", "int32"),
    )
    return Kernel(
        name="gemv",
        config=config,
        function=gemv_rows,
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=least_arch(dependent),
        min_blocks=config.resident,  # shared memory allows no more, so registers need not be spared for more
    )


# (format, dim, od): Qwen2.5-7B Q4_K_M; Qwen2.5-0.5B Q4_K_M; SmolLM2-135M Q4_1; and every other format once.
_SHAPES = (
    ("Q4_K", 3584, 37888),
    ("Q4_K", 18944, 3584),
    ("Q6_K", 3584, 152064),
    ("Q6_K", 18944, 3584),
    ("Q5_0", 896, 4864),
    ("Q8_0", 896, 151936),
    ("Q4_K", 4864, 896),
    ("Q6_K", 4864, 896),
    ("Q4_1", 576, 1536),
    ("Q8_0", 576, 49152),
    ("Q4_1", 1536, 576),
    ("Q5_K", 3584, 3584),
    ("Q4_0", 3584, 3584),
    ("Q5_1", 3584, 3584),
    ("F16", 3584, 3584),
    ("BF16", 3584, 3584),
    ("F32", 3584, 3584),
)


KERNELS = ("gemv",)


def shipped() -> list[Kernel]:
    """Every config that minfer ships: each shape plain, and the 7B's with an addend and with pdl."""
    kernels = [gemv(GemvConfig.for_shape(*shape)) for shape in _SHAPES]
    kernels += [
        gemv(GemvConfig.for_shape(*shape, addend=True, pdl=pdl))
        for shape in _SHAPES[:4]
        for pdl in (False, True)
    ]
    return kernels
