"""A whole decode step in one kernel that stays (sm_90): one block a multiprocessor, one launch a token.

A step of kernels loses at its seams: each waits for the one before, and the weights' stream stops. Here it
does not stop: one warp of every block copies the weights of all phases, in order, into a ring
(`minfer.cuda.token.ring`), and never waits for an activation. The phases (norm and q, k, v; attention; output
projection; norm, gate and up; down) are only held apart by what the blocks need of each other
(`minfer.cuda.token.exchange`). What memory delivers meanwhile waits in the ring, and is then multiplied
faster than memory delivers (`minfer.cuda.token.dots`).

Tried and out again (H200, tokens a second of 128, cool and under a load that lasts): the token embedded here,
every block dequantizing its row for the first norm, instead of by a launch of its own: 843 and 802 instead of
849 and 807, though 5 us a token were foretold; and a block that tells that its share is done with its last
tile, not behind it: 840 and 799, 40 us foretold.
"""

from __future__ import annotations

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unrolled
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.token.addresses import (
    ACTIVATED_RECORDS,
    ATTENDED_RECORDS,
    BARRIERS,
    BEST,
    CHOSEN,
    COUNTERS,
    KEYS,
    LENGTH,
    LOGITS,
    PARTIAL,
    POSITION,
    POSITIONS,
    QKV,
    RESIDUAL,
    ROPE_TABLE,
    STATISTICS,
    TOKEN,
    VALUES,
    VECTORS,
    WEIGHTS,
    address_of,
    join,
    put_address,
)
from minfer.cuda.token.attend import make_attend
from minfer.cuda.token.choose import make_choose
from minfer.cuda.token.config import ENTRY_BYTES, TokenConfig
from minfer.cuda.token.exchange import make_copy, make_exchange, make_norm
from minfer.cuda.token.multiply import FIRST, LAST, SHARE, make_multiply
from minfer.cuda.token.ring import make_stream
from minfer.cuda.token.schedule import ACTIVATED, ADD, ARRIVE, ATTENDED, ATTENTION, NORM, WAIT
from minfer.cuda.token.tiles import make_block_rows


def decode_token(config: TokenConfig) -> Kernel:
    """The layers and the output projection of one token.

    Arguments: schedule uint32 [entries, 8] (`minfer.cuda.token.schedule`); weights, vectors, keys, values:
    what its offsets count from; x f32 [hidden]: the embedded token; residual f32 of `config.sums_shape`, or
    without tags x itself: afterwards the last residual; qkv f32 of that shape of (heads + 2 kv_heads) *
    head_dim, attended and activated uint8 of `config.exchanged_bytes`: workspaces, the latter for the
    attention's output and for ffn; logits f32; positions int32 [1]: rows in the caches before; rope_table f32
    [positions, rotary / 2, 2]; partial, statistics, counters: workspaces of the attention's shapes; barriers
    uint32 [3], best uint32 [2]; chosen int32 [2], next_token, length int32 [1]; eps,
    scale float32; choose int32. If `choose` is not 0, the state is that of the next token afterwards, as
    `minfer.cuda.elementwise.argmax` leaves it. Before the first launch counters, barriers, best and,
    with tags, what blocks exchange are zero; nobody else writes them. Launch on `config.grid`, with pdl=True
    or without.

    Integer dot products are exact and f32 sums have a fixed order: the same bits on every run.
    """
    entries, warps, slots, threads = config.entries, config.warps, config.slots, config.threads
    scratch_at, addresses_at, table_at, region_at = (
        config.scratch_at, config.addresses_at, config.table_at, config.region_at
    )  # fmt: skip
    full_at, done_at, blocks, hidden = config.full_at, config.done_at, config.blocks, config.hidden
    best_at, tagged, counted = config.best_at, config.tagged, config.awaited > 0
    quiet_at, hushed = config.quiet_at, config.hushed
    all_threads, early = threads + 32, blocks - config.awaited

    @device_function
    def sync():
        """A barrier of the warps that multiply."""
        ptx.bar_sync(uint32(1), uint32(threads))

    @device_function
    @unrolled
    def wait(counter, target):
        """Wait until all blocks but `early` have arrived so often."""
        if counted:
            if cuda.threadIdx.x == 0:
                ptx.wait_global_u32(counter, uint32(max(target, uint32(early)) - uint32(early)))
            sync()

    @device_function
    @unrolled
    def arrive(counter, times):
        """After a barrier of the block; by the thread that has least to do while the block attends."""
        if counted and cuda.threadIdx.x == threads - 1:
            if tagged:
                ptx.red_add_u32(counter, uint32(times))
            else:
                ptx.red_add_release_u32(counter, uint32(times))

    exchange = make_exchange(config)
    store_sum, load_sum = exchange.store_sum, exchange.load_sum
    block_rows = make_block_rows(config)
    stream, attend = make_stream(config), make_attend(config, exchange, wait, arrive, sync)
    take_share, multiply = make_multiply(config, exchange, sync)
    tell, choose_next = make_choose(config, sync)
    prepare, norm, put_norm_scale = make_norm(config, exchange.load_sums)
    copy_attended, copy_activated = (make_copy(config, dim) for dim in (config.attended, config.ffn))

    @device_function
    def load_table(table, schedule):
        for i in range(int32(cuda.threadIdx.x), entries * (ENTRY_BYTES // 16), all_threads):
            w0, w1, w2, w3 = ptx.ld_global_nc_v4_u32(schedule + uint64(i) * uint64(16))
            ptx.st_shared_v4_u32(table + uint32(i * 16), w0, w1, w2, w3)

    @device_function
    def leave(shared, barriers, tag, choose):
        """The last block to leave sets the counters back, and keeps the last tag for the next launch."""
        if cuda.threadIdx.x == 0:
            before = ptx.atom_add_global_u32(barriers + uint64(4), uint32(1))
            if before == uint32(blocks - 1):
                ptx.st_global_u32(barriers, uint32(0))
                ptx.st_global_u32(barriers + uint64(4), uint32(0))
                if tagged:
                    ptx.st_global_u32(barriers + uint64(8), tag)
                if choose:
                    choose_next(shared)

    @device_function
    def put_embedded(x, residual, block, tag):
        """This block's share of the embedded token to the residual stream."""
        first, last = block_rows(int32(0), int32(hidden), block)
        mine = first + int32(cuda.threadIdx.x)
        if mine < last:
            store_sum(residual, mine, ptx.ld_global_f32(x + uint64(mine) * uint64(4)), tag)

    @device_function
    @unrolled
    def work(shared, x, eps, scale, choose, block, warp):
        """The warps that multiply and attend."""
        thread = int32(cuda.threadIdx.x)
        addresses = shared + uint32(addresses_at)
        table = shared + uint32(table_at)
        region = shared + uint32(region_at)
        state = cuda.local.array(2, uint32)
        state[0] = uint32(0)
        state[1] = uint32(0)
        barriers = address_of(addresses, BARRIERS)
        if thread == 0:  # barriers of the first products are before its readers
            position = ptx.ld_global_u32(address_of(addresses, POSITIONS))
            put_address(addresses, POSITION, uint64(position))
        target = uint32(0)
        tag = uint32(0)  # of what the step before has made
        if tagged:
            tag = uint32(ptx.ld_global_u32(barriers + uint64(8)) + uint32(1))
            put_embedded(x, address_of(addresses, RESIDUAL), block, tag)
        for e in range(entries):
            at = table + uint32(e * ENTRY_BYTES)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at)
            w4, w5, w6, w7 = ptx.ld_shared_v4_u32(at + uint32(16))
            flags = int32(w6)
            if flags & ATTENTION:
                attend(
                    region,
                    addresses,
                    block,
                    barriers,
                    target,
                    tag,
                    join(w0, w1),
                    join(w2, w3),
                    join(w4, w5),
                    scale,
                )
            else:
                share = cuda.local.array(SHARE, int32)
                take_share(share, flags, int32(w4), w7, block, warp)
                residual = address_of(addresses, RESIDUAL)
                old = float32(0)  # what this thread adds to: nobody writes it meanwhile
                mine = int32(share[FIRST] + thread)
                if flags & ADD and mine < share[LAST]:
                    old = load_sum(residual, mine)
                if flags & WAIT:
                    if flags & NORM:
                        prepare(region, address_of(addresses, VECTORS) + join(w2, w3))
                    wait(barriers, target)
                    if flags & NORM:
                        norm(region, shared + uint32(scratch_at), residual, tag)
                    elif flags & ATTENDED:
                        copy_attended(region, address_of(addresses, ATTENDED_RECORDS), tag)
                    elif flags & ACTIVATED:
                        copy_activated(region, address_of(addresses, ACTIVATED_RECORDS), tag)
                    sync()
                    if flags & NORM and thread == threads - 32:
                        put_norm_scale(shared + uint32(scratch_at), eps)
                    if hushed and e > 0 and thread == 0:  # no more: what was handed on is here
                        ptx.mbarrier_arrive(shared + uint32(quiet_at))
                multiply(shared, region, share, flags, w7, w5, w0, state, old, tag + uint32(1))
                if flags & ARRIVE:
                    arrive(barriers, uint32(1))
            if flags & ARRIVE:
                target += uint32(blocks)
                tag = uint32(tag + uint32(1))
        if choose:
            tell(shared)
        leave(shared, barriers, tag, choose)

    @device_function
    def run(shared, x, eps, scale, choose):
        thread = int32(cuda.threadIdx.x)
        warp = ptx.uniform(thread >> 5)
        block = int32(cuda.blockIdx.x)
        if thread == 0:
            for n in range(slots):
                ptx.mbarrier_init(shared + uint32(full_at + n * 8), uint32(1))
                ptx.mbarrier_init(shared + uint32(done_at + n * 8), uint32(warps))
            ptx.mbarrier_init(shared + uint32(quiet_at), uint32(1))
            ptx.fence_mbarrier_init()
            for n in range(warps):
                ptx.st_shared_v2_u32(shared + uint32(best_at + n * 8), uint32(0), uint32(0))
        cuda.syncthreads()
        if warp == warps:
            if ptx.lane_id() == 0:
                stream(shared, block)
        else:
            ptx.griddepcontrol_wait()
            work(shared, x, eps, scale, choose, block, warp)

    address = ptx.global_address

    def token(
        schedule, weights, vectors, keys, values, x, residual, qkv, attended, activated, logits, positions,
        rope_table, partial, statistics, counters, barriers, best, chosen, next_token, length,
        eps, scale, choose,
    ):  # fmt: skip
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        load_table(shared + uint32(table_at), address(schedule))
        if cuda.threadIdx.x == 0:
            at = shared + uint32(addresses_at)
            put_address(at, WEIGHTS, address(weights))
            put_address(at, VECTORS, address(vectors))
            put_address(at, KEYS, address(keys))
            put_address(at, VALUES, address(values))
            put_address(at, RESIDUAL, address(residual))
            put_address(at, QKV, address(qkv))
            put_address(at, ATTENDED_RECORDS, address(attended))
            put_address(at, ACTIVATED_RECORDS, address(activated))
            put_address(at, LOGITS, address(logits))
            put_address(at, POSITIONS, address(positions))
            put_address(at, ROPE_TABLE, address(rope_table))
            put_address(at, PARTIAL, address(partial))
            put_address(at, STATISTICS, address(statistics))
            put_address(at, COUNTERS, address(counters))
            put_address(at, BARRIERS, address(barriers))
            put_address(at, BEST, address(best))
            put_address(at, CHOSEN, address(chosen))
            put_address(at, TOKEN, address(next_token))
            put_address(at, LENGTH, address(length))
        run(shared, address(x), eps, scale, choose)

    arguments = (
        Argument("schedule", "in", "uint32", align=16),
        Argument("weights", "in", "uint8", align=16),
        Argument("vectors", "in", "float32", align=16),
        Argument("keys", "inout", "float16", align=16),
        Argument("values", "inout", "float16", align=16),
        Argument("x", "in", "float32"),
        Argument("residual", "inout", "float32", align=16),
        Argument("qkv", "inout", "float32", align=16),
        Argument("attended", "inout", "uint8", align=16),
        Argument("activated", "inout", "uint8", align=16),
        Argument("logits", "out", "float32"),
        Argument("positions", "inout", "int32"),
        Argument("rope_table", "in", "float32", align=16),
        Argument("partial", "inout", "float32", align=16),
        Argument("statistics", "inout", "float32", align=8),
        Argument("counters", "inout", "uint32"),
        Argument("barriers", "inout", "uint32"),
        Argument("best", "inout", "uint32", align=8),
        Argument("chosen", "inout", "int32"),
        Argument("next_token", "inout", "int32"),
        Argument("length", "inout", "int32"),
        Argument("eps", "scalar", "float32"),
        Argument("scale", "scalar", "float32"),
        Argument("choose", "scalar", "int32"),
    )
    return Kernel(
        name="decode_token",
        config=config,
        function=token,
        threads=all_threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
        # Other shapes: what is put aside comes back from L2, since waiting for other blocks empties L1.
        allowed_spill_bytes=256,
        cooperative=True,
    )
