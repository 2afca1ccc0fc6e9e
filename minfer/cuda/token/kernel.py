"""A whole decode step in one kernel that stays (sm_90): one block a multiprocessor, one launch a token.

A step of kernels loses at its seams: each waits for the one before, and the weights' stream stops. Here it does
not stop: every warp copies the weights of all phases, in order, into a ring of its own (`minfer.cuda.token.
ring`), and the phases (norm and q, k, v; attention; output projection; norm, gate and up; down) are only held
apart by barriers of the grid, a counter in memory. What memory delivers meanwhile waits in the rings.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.gemv.fine import FINE_RECORD_BYTES
from minfer.cuda.gemv.staging import stage_activations
from minfer.cuda.gemv.stream_config import LOADS
from minfer.cuda.instruction import device_function, unrolled
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.signature import signature_of
from minfer.cuda.token.attend import make_attend
from minfer.cuda.token.config import ENTRY_BYTES, MOST_SLOTS, TokenConfig
from minfer.cuda.token.products import make_finish, make_product
from minfer.cuda.token.ring import ENTRY, make_ring
from minfer.cuda.token.schedule import (
    ACTIVATED,
    ARRIVE,
    ATTENDED,
    ATTENTION,
    NORM,
    PAIRS,
    SIX_BIT,
    TO_QKV,
    WAIT,
)


class Staged(NamedTuple):
    """What `stage_activations` asks of a config."""

    dim: int
    source: str
    warps: int

    @property
    def threads(self) -> int:
        return self.warps * 32


def decode_token(config: TokenConfig) -> Kernel:
    """The layers and the output projection of one token.

    Arguments: schedule uint32 [entries, 8]; weights, vectors, keys, values: what its offsets count from; x f32
    [hidden] (the embedded token; afterwards the last residual), qkv f32 [(heads + 2 kv_heads) * head_dim],
    attended and activated uint8: room for fine records of the attention's output and of ffn; logits f32;
    (q_norm, k_norm: with head norms, not supported yet); positions int32 [1], table f32 [positions, rotary / 2,
    2] (RoPE), partial, statistics and counters: workspaces of the attention's shapes; barriers uint32 [2];
    eps, scale float32. Counters and barriers are zero before the first launch; each launch leaves them so.
    Launch on `config.grid`.
    """
    ring = make_ring(config)
    refill = ring.refill
    product4, product6 = (make_product(config, ring, format) for format in ("Q4_K", "Q6_K"))
    finish = make_finish(config, ring)
    prepare, stage_normed = stage_activations(Staged(config.hidden, "norm", config.warps))
    _, stage_attended = stage_activations(Staged(config.attended, "records", config.warps))
    _, stage_activated = stage_activations(Staged(config.ffn, "records", config.warps))
    entries, warps, slots, slot_bytes = config.entries, config.warps, config.slots, config.slot_bytes
    threads, held = config.threads, 4 * LOADS
    scratch_at, table_at, region_at, ring_at = (
        config.warps * MOST_SLOTS * 8, config.table_at, config.region_at, config.ring_at
    )  # fmt: skip
    words_a_record = 4 * FINE_RECORD_BYTES

    @device_function
    def wait(counter, target):
        """Wait until all blocks have arrived so often; for all threads."""
        if cuda.threadIdx.x == 0:
            ptx.wait_global_u32(counter, target)
        cuda.syncthreads()

    attend = make_attend(config, wait)

    @device_function
    def load_table(table, schedule):
        for i in range(int32(cuda.threadIdx.x), entries * (ENTRY_BYTES // 16), threads):
            w0, w1, w2, w3 = ptx.ld_global_nc_v4_u32(schedule + uint64(i) * uint64(16))
            ptx.st_shared_v4_u32(table + uint32(i * 16), w0, w1, w2, w3)

    @device_function
    def leave(barriers, blocks):
        """The last block to leave sets the counters back."""
        if cuda.threadIdx.x == 0:
            before = ptx.atom_add_global_u32(barriers + uint64(4), uint32(1))
            if before == uint32(blocks - 1):
                ptx.st_global_u32(barriers, uint32(0))
                ptx.st_global_u32(barriers + uint64(4), uint32(0))

    @device_function
    def pair(low, high):
        return uint64(low) | (uint64(high) << uint64(32))

    @device_function
    @unrolled
    def run(
        schedule, weights, vectors, keys, values, x, qkv, attended, activated, logits, positions, rope_table,
        partial, statistics, counters, barriers, eps, scale,
    ):  # fmt: skip
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        warp = ptx.uniform(thread >> 5)
        block = int32(cuda.blockIdx.x)
        blocks = int32(cuda.gridDim.x)
        table = shared + uint32(table_at)
        region = shared + uint32(region_at)
        full = shared + uint32(warp * (slots * 8))
        mine = shared + uint32(ring_at) + uint32(warp * (slots * slot_bytes))
        load_table(table, schedule)
        if ptx.lane_id() == 0:
            for n in range(slots):
                ptx.mbarrier_init(full + uint32(n * 8), uint32(1))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        cursor = cuda.local.array(3, int32)
        cursor[ENTRY] = int32(-1)
        cursor[1] = int32(0)
        cursor[2] = int32(0)
        state = cuda.local.array(3, uint32)
        state[0] = uint32(0)
        state[1] = uint32(0)
        state[2] = uint32(0)
        for n in range(slots):
            refill(
                cursor, table, weights, block, blocks, warp,
                mine + uint32(n * slot_bytes), full + uint32(n * 8),
            )  # fmt: skip
        ptx.griddepcontrol_wait()
        target = uint32(0)
        for e in range(entries):
            at = table + uint32(e * ENTRY_BYTES)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at)
            w4, w5, w6, _ = ptx.ld_shared_v4_u32(at + uint32(16))
            flags = int32(w6)
            if flags & ATTENTION:
                attend(
                    region, block, barriers, target, qkv, vectors + pair(w2, w3), vectors, vectors, eps,
                    positions, rope_table, keys + pair(w0, w1), values + pair(w4, w5), partial, statistics,
                    counters, attended, scale,
                )  # fmt: skip
            else:
                rows = int32(w4)
                units = int32(w5) & 255
                factors = cuda.local.array(held, float32)
                if flags & NORM:
                    prepare(factors, vectors + pair(w2, w3))
                if flags & WAIT:
                    wait(barriers, target)
                scratch = shared + uint32(scratch_at)
                if flags & NORM:
                    stage_normed(factors, region, scratch, x, vectors, eps)
                elif flags & ATTENDED:
                    stage_attended(factors, region, scratch, attended, vectors, eps)
                elif flags & ACTIVATED:
                    stage_activated(factors, region, scratch, activated, vectors, eps)
                sums = region + uint32(units * words_a_record)
                y = logits
                if flags & TO_QKV:
                    y = qkv + uint64(int32(w5) >> 8) * uint64(4)
                if flags & SIX_BIT:
                    product6(
                        flags, rows, units, w0, region, sums, x, y, cursor, state, table, weights, block,
                        blocks, warp, full, mine,
                    )  # fmt: skip
                else:
                    product4(
                        flags, rows, units, w0, region, sums, x, y, cursor, state, table, weights, block,
                        blocks, warp, full, mine,
                    )  # fmt: skip
                if flags & (ACTIVATED | PAIRS):
                    cuda.syncthreads()
                    finish(flags, rows, sums, x, activated, block, blocks)
            if flags & ARRIVE:
                cuda.syncthreads()
                if thread == 0:
                    ptx.red_add_release_u32(barriers, uint32(1))
                target += uint32(blocks)
        leave(barriers, blocks)

    address = ptx.global_address

    def token(
        schedule, weights, vectors, keys, values, x, qkv, attended, activated, logits, positions, rope_table,
        partial, statistics, counters, barriers, eps, scale,
    ):  # fmt: skip
        run(
            address(schedule), address(weights), address(vectors), address(keys), address(values), address(x),
            address(qkv), address(attended), address(activated), address(logits), address(positions),
            address(rope_table), address(partial), address(statistics), address(counters), address(barriers),
            eps, scale,
        )  # fmt: skip

    arguments = (
        Argument("schedule", "in", "uint32", align=16),
        Argument("weights", "in", "uint8", align=16),
        Argument("vectors", "in", "float32", align=16),
        Argument("keys", "inout", "float16", align=16),
        Argument("values", "inout", "float16", align=16),
        Argument("x", "inout", "float32", align=16),
        Argument("qkv", "inout", "float32", align=16),
        Argument("attended", "inout", "uint8", align=16),
        Argument("activated", "inout", "uint8", align=16),
        Argument("logits", "out", "float32"),
        Argument("positions", "in", "int32"),
        Argument("rope_table", "in", "float32", align=16),
        Argument("partial", "inout", "float32", align=16),
        Argument("statistics", "inout", "float32", align=8),
        Argument("counters", "inout", "uint32"),
        Argument("barriers", "inout", "uint32"),
        Argument("eps", "scalar", "float32"),
        Argument("scale", "scalar", "float32"),
    )
    return Kernel(
        name="decode_token",
        config=config,
        function=token,
        signature=signature_of(arguments),
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
        allowed_spill_bytes=2048,
        cooperative=True,
    )
