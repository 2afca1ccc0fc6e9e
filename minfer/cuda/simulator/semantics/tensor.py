"""Matrix instructions of a warp: ldmatrix, stmatrix, mma.sync, with the fragment layouts of the PTX ISA.

Lane l = 4 g + t. An accumulator fragment of 16 x 8 holds rows g, g + 8 and columns 2t, 2t + 1; an A
fragment rows g, g + 8 and a register's worth of columns at t, twice; a B fragment column g and rows
likewise (9.7.14, "Matrix Fragments").
"""

from __future__ import annotations

import numpy as np

from minfer.cuda.simulator.lanes import current_lane
from minfer.cuda.simulator.memory import check_aligned
from minfer.cuda.simulator.semantics.table import register
from minfer.cuda.trace.ops import Op

# ---- ldmatrix, stmatrix


def _make_ldmatrix(name: str, count: int, transposed: bool):
    rows = 8 * count

    def execute(warp, addresses):
        shared = warp.block.shared
        data = b"".join(shared.read(address, 16) for address in addresses[:rows])
        if transposed:
            halves = np.frombuffer(data, np.uint16).reshape(count, 8, 8).transpose(0, 2, 1)
            words = np.ascontiguousarray(halves).view(np.uint32)
        else:
            words = np.frombuffer(data, np.uint32)
        # word (matrix, row, t) belongs to register `matrix` of lane 4 row + t
        lanes = words.reshape(count, 32).T.tolist()
        return [row[0] for row in lanes] if count == 1 else [tuple(row) for row in lanes]

    def ldmatrix(address):
        lane = current_lane(name)
        address = int(address) & 0xFFFFFFFF
        if lane.index < rows:
            shared = lane.block.shared.find(address, 16)
            check_aligned(address, 16, name)
            shared.check_written(address, 16)
            if lane.trace is not None:
                lane.trace.record(lane, Op.LDMATRIX, address, 16, count)
        return lane.warp.collective(lane, name, address, execute)

    return ldmatrix


def _make_stmatrix(name: str, count: int, transposed: bool):
    rows = 8 * count

    def execute(warp, arguments):
        words = np.array([registers for _, registers in arguments], np.uint32).T.reshape(count, 8, 4)
        if transposed:
            words = np.ascontiguousarray(words).view(np.uint16).reshape(count, 8, 8).transpose(0, 2, 1)
        data = np.ascontiguousarray(words).tobytes()
        for row in range(rows):
            warp.block.shared.write(arguments[row][0], data[16 * row : 16 * row + 16])

    def stmatrix(address, *registers):
        lane = current_lane(name)
        address = int(address) & 0xFFFFFFFF
        if lane.index < rows:
            lane.block.shared.find(address, 16)
            check_aligned(address, 16, name)
            if lane.trace is not None:
                lane.trace.record(lane, Op.STMATRIX, address, 16, count)
        values = [int(r) & 0xFFFFFFFF for r in registers]
        lane.warp.collective(lane, name, (address, values), execute)

    return stmatrix


for _count in (1, 2, 4):
    for _trans in (False, True):
        _suffix = f"x{_count}{'_trans' if _trans else ''}"
        register(f"ldmatrix_{_suffix}", _make_ldmatrix(f"ldmatrix_{_suffix}", _count, _trans))
        register(f"stmatrix_{_suffix}", _make_stmatrix(f"stmatrix_{_suffix}", _count, _trans))


# ---- fragments


def gather_a(registers: np.ndarray) -> np.ndarray:
    """A fragments of a warp, (32 lanes, 4 registers, elements a register), as (16 rows, k) with k = 8
    elements a register."""
    per = registers.shape[2]
    lanes = registers.reshape(8, 4, 2, 2, per)  # g, t, column half, row half, element
    return lanes.transpose(3, 0, 2, 1, 4).reshape(16, 8 * per)


def gather_b(registers: np.ndarray) -> np.ndarray:
    """B fragments of a warp, (32, 2, elements a register), as (8 columns, k): row n of the result is column
    n of B."""
    per = registers.shape[2]
    return registers.reshape(8, 4, 2, per).transpose(0, 2, 1, 3).reshape(8, 8 * per)


def gather_accumulator(values: np.ndarray) -> np.ndarray:
    """Accumulator fragments of a warp, (32, 4), as (16, 8)."""
    return values.reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)


def scatter_accumulator(matrix: np.ndarray) -> np.ndarray:
    """(16, 8) as the accumulator fragments of a warp, (32, 4)."""
    return matrix.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)


def half_to_float(words: np.ndarray, dtype: str) -> np.ndarray:
    """uint32 words as float32 pairs in a new last axis; dtype "f16" or "bf16"."""
    if dtype == "f16":
        return np.ascontiguousarray(words).view(np.float16).reshape(*words.shape, 2).astype(np.float32)
    bits = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 2).astype(np.uint32) << 16
    return bits.view(np.float32)


def _float_mma(dtype: str):
    def execute(warp, arguments):
        words = np.array([argument[0] for argument in arguments], np.uint32)
        a = gather_a(half_to_float(words[:, :4], dtype))
        b = gather_b(half_to_float(words[:, 4:], dtype))
        c = gather_accumulator(np.array([argument[1] for argument in arguments], np.float32))
        # not BLAS: some of its kernels add a row's products in an order that its place in the matrix decides
        product = np.einsum("mk,nk->mn", a, b)
        return [tuple(row) for row in scatter_accumulator(product + c)]

    return execute


def _integer_mma(a_type: type, b_type: type = np.int8):
    def execute(warp, arguments):
        words = np.array([argument[0] for argument in arguments], np.uint32)
        a = gather_a(np.ascontiguousarray(words[:, :4]).view(a_type).reshape(32, 4, 4).astype(np.float32))
        b = gather_b(np.ascontiguousarray(words[:, 4:]).view(b_type).reshape(32, 2, 4).astype(np.float32))
        c = gather_accumulator(np.array([argument[1] for argument in arguments], np.int64))
        total = (a @ b.T).astype(np.int64) + c  # the products' sums stay below 2**24: exact in float32
        return [tuple(row) for row in scatter_accumulator(total.astype(np.int32)).tolist()]

    return execute


def _make_mma(name: str, execute):
    def mma(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        lane = current_lane(name)
        if lane.trace is not None:
            lane.trace.record(lane, Op.MMA)
        return lane.warp.collective(lane, name, ((a0, a1, a2, a3, b0, b1), (c0, c1, c2, c3)), execute)

    return mma


register("mma_m16n8k16_f16", _make_mma("mma_m16n8k16_f16", _float_mma("f16")))
register("mma_m16n8k16_bf16", _make_mma("mma_m16n8k16_bf16", _float_mma("bf16")))
register("mma_m16n8k32_s8", _make_mma("mma_m16n8k32_s8", _integer_mma(np.int8)))
register("mma_m16n8k32_s8u8", _make_mma("mma_m16n8k32_s8u8", _integer_mma(np.int8, np.uint8)))
register("mma_m16n8k32_u8s8", _make_mma("mma_m16n8k32_u8s8", _integer_mma(np.uint8)))


def _execute_s8_k16(warp, arguments):
    """Half the depth: the other registers of a k32 product are zero."""
    whole = [((a0, a1, 0, 0, b0, 0), c) for (a0, a1, b0), c in arguments]
    return _integer_mma(np.int8)(warp, whole)


def _mma_m16n8k16_s8(a0, a1, b0, c0, c1, c2, c3):
    lane = current_lane("mma_m16n8k16_s8")
    if lane.trace is not None:
        lane.trace.record(lane, Op.MMA)
    return lane.warp.collective(lane, "mma_m16n8k16_s8", ((a0, a1, b0), (c0, c1, c2, c3)), _execute_s8_k16)


register("mma_m16n8k16_s8", _mma_m16n8k16_s8)
