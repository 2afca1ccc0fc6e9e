"""C[nt, od] = A[nt, id] W[od, id]^T on Hopper with W as Q4_K or Q6_K blocks: no f16 copy of the weights.

The product is computed transposed, since only wgmma's A operand may come from registers: a tile's rows are
128 or 192 outputs, its columns up to 256 tokens. Warpgroup 0 brings both operands: one thread loads the
activations' k-tiles of 64 by TMA into a ring of stages, three warps the weights' blocks into a ring of slots
(`minfer.cuda.w4a16.movers`). The other warpgroups hold 64 rows each: they unpack a k-tile's weights into
fragments (`minfer.cuda.w4a16.formats`) while the tensor cores work on the one before; no unpacked weight is
written anywhere. One block a multiprocessor takes tile after tile.

- Each weight becomes f16 with one rounding (Q4_K) or is an exact 6-bit number times an f16 scale (Q6_K): the
  result is as exact as that of a GEMM over an f16 copy, up to the scales' own rounding to f16.
- The tokens of a tile are chosen so that the tiles fill whole waves of multiprocessors (`choose`).
- While wgmma is in flight nothing branches by lane (C7518), and fragments are pinned before the next wait.

What was tried on an H200 and lost: two or three wgmma groups in flight (the assembler serialises them all,
C7513); k-tiles of 128 (no faster for any tile); narrow tiles that fill more waves (152 tokens: unpacking
takes longer than multiplying). Scales are named in the operand: copied to both halves by prmt they are 57
instructions more.

What held Q6_K back, read off ncu's samples an instruction: the warps that copy are slow in instructions (one
in about nine cycles), and spent 530 on a block, so that consumers waited a tenth of their time for blocks;
then k-tiles in which all of a half block's bytes were loaded took longer than their products, and the others
less. Of cuBLAS's speed on an f16 copy, at 2048 tokens of a 7B: Q4_K 1.00 (qkv; two consumers 0.98-0.99),
1.04-1.08 (o), 0.99-1.02 (gate and up), 1.02-1.09 (down), Q6_K 1.03 (down, 0.94 before the last of these
steps).
"""

from __future__ import annotations

from functools import cache

from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.w4a16.config import FORMATS, TILES, W4A16Config
from minfer.cuda.w4a16.formats import PAIRS, QUARTERS, WORDS
from minfer.cuda.w4a16.packed_tile import MOVERS, REGISTERS


@cache
def w4a16(config: W4A16Config) -> Kernel:
    """The kernel of a config: (a, w, [bias], c, nt, od, depth, first, width, group). With `gated` c is
    silu(gate) * up of products with od rows each, which follow each other in w.

    a is the tensor map of A [nt, depth] f16. w holds the blocks of `od` rows (gated: 2 od): a tensor map of
    uint8 [rows, row bytes] for Q4_K, the uint8 array itself for Q6_K. bias is f32 [od]. c is C [nt, width],
    f16 or f32: a tensor map with store="tma", else the array; the product's columns start at `first`. (Boxes
    and swizzles: `config.boxes`.) Sizes are int32; depth is a multiple of 256; group is `config.group(nt)`,
    the grid `config.grid`.

    Every element of the product is written. With store="tma" a product that ends before `width` writes zeros
    or rubbish to columns past its end, up to the next multiple of 64 columns from `first`: products into
    neighbouring columns must be launched in ascending order."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.elementwise.activation import silu_product_by
    from minfer.cuda.instruction import device_function, unroll, unrolled
    from minfer.cuda.tile.scheduler import tile_xy
    from minfer.cuda.tile.transposed import store_accumulators_transposed, store_tile_transposed
    from minfer.cuda.w4a16.activations import bring_activations
    from minfer.cuda.w4a16.movers import move_weights, row_skew
    from minfer.cuda.w4a16.prologue import start_rings

    tokens, outputs = config.tokens, config.outputs
    stages, stage_bytes = config.stages, config.stage_bytes
    slots, slot_bytes = config.slots, config.slot_bytes
    buffers_start, slots_start = config.buffers_start, config.slots_start
    slot_barriers = config.ring.size_bytes
    ready_start, constant_start = config.ready_start, config.constant_start
    accumulators, words, magic = tokens // 2, config.packed.words, config.packed.magic
    # The ring holds whole blocks, so that a quarter's stage is known when the kernel is compiled.
    laps, block_stages = stages // QUARTERS, QUARTERS
    by_tma, stored_by_tma, biased = config.packed.by_tma, config.store == "tma", config.bias
    # Gates and the ups that belong to them are rows g and g + 8 of the fragments.
    combine = silu_product_by if config.gated else None
    gated, consumer_outputs = config.gated, outputs // config.consumers
    # Weight rows of a warp, and from row g of its fragments to row g + 8.
    warp_rows, apart = (8, outputs) if gated else (16, 8)
    buffers_bytes = max(0, config.buffers) * config.chunk_bytes
    element_bytes = 2 if config.out == "f16" else 4
    advance_slot = config.slot_ring.advance
    few, many = REGISTERS[config.consumers]
    fewer, more_registers = ptx.setmaxnreg("dec", few), ptx.setmaxnreg("inc", many)
    prepare, finish, begin = config.packed.prepare, config.packed.finish, config.packed.begin
    begins, read_by = begin is not None, config.packed.read_by
    locate, skew_of, move = config.packed.place, row_skew(config), move_weights(config)
    bring, start = bring_activations(config), start_rings(config, MOVERS, magic)
    ahead = config.ahead
    # The first k-tile overwrites the sums; afterwards at most this k-tile's group is in flight.
    multiply_first = ptx.wgmma(tokens, a="registers", k_steps=4, accumulate="operand")
    multiply = ptx.wgmma(tokens, a="registers", k_steps=4)
    wait_last = ptx.wgmma_wait(1, accumulators)
    wait_sums, pin = ptx.wgmma_wait(0, accumulators), ptx.pin(WORDS)
    wait_stores = ptx.bulk_wait_group_read(0)
    store_tile = store_tile_transposed(tokens, config.buffers, combine) if stored_by_tma else None
    store_elements = store_accumulators_transposed(tokens, config.out)
    descriptor = ptx.wgmma_descriptor

    @device_function
    def add_bias(sums, low, high):
        for j in range(tokens // 8):
            sums[4 * j] += low
            sums[4 * j + 1] += low
            sums[4 * j + 2] += high
            sums[4 * j + 3] += high

    @device_function
    def bias_of(bias, row, od):
        return ptx.ld_global_nc_f32(bias + types.uint64(min(row, od - 1)) * types.uint64(4))

    @device_function
    def next_lap(lap, parity):
        """The first stage of the next block, and its parity."""
        if laps == 1:
            return lap, types.uint32(parity ^ 1)
        after = types.uint32(lap ^ block_stages)
        return after, types.uint32(parity ^ (after == 0))

    @device_function
    def last_stage(lap):
        """The last stage of the block before the one that starts at `lap`."""
        if laps == 1:
            return types.uint32(block_stages - 1)
        return types.uint32((lap ^ block_stages) + (block_stages - 1))

    @device_function
    def release(barriers, stage, thread):
        ptx.mbarrier_arrive_if(barriers + 8 * (stages + stage), thread == 0)

    @device_function
    @unrolled
    def consume(
        bias, c, base, barriers, tile, step, token_tiles, output_tiles, blocks,
        nt, od, first, width, group, pitch, consumer, thread,
    ):  # fmt: skip
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        row = types.int32(consumer * consumer_outputs + warp * warp_rows + (lane >> 2))
        byte = types.uint32((lane & 3) * 2)
        sums = cuda.local.array(accumulators, dtype=types.float32)
        even = cuda.local.array(WORDS, dtype=types.uint32)
        odd = cuda.local.array(WORDS, dtype=types.uint32)
        numbers = cuda.local.array(WORDS, dtype=types.uint32)
        pairs = cuda.local.array(PAIRS, dtype=types.uint32)
        raw = cuda.local.array(words, dtype=types.uint32)
        for i in range(accumulators):
            sums[i] = types.float32(0)
        low_bias, high_bias = types.float32(0), types.float32(0)
        a_start = descriptor(base, 16)
        slots_at, ready = types.uint32(base + slots_start), types.uint32(barriers + ready_start)
        constant = types.uint32(barriers + constant_start)
        buffer = types.uint32(base + buffers_start + consumer * buffers_bytes)
        lap, parity = types.uint32(0), types.uint32(0)
        if magic:
            # The lane's number, below 32, keeps the assembler from using a uniform register.
            raw[words - 1] = ptx.ld_shared_u32(constant + 4) + (ptx.lane_id() >> 5)
        slot, slot_parity = types.uint32(0), types.uint32(0)
        token_tile, output_tile = types.int32(0), types.int32(0)
        near_skew, far_skew = skew_of(row, od, pitch), skew_of(row + apart, od, pitch)
        ptx.mbarrier_wait(ready, 0)
        near, near_scales = locate(slots_at, row, near_skew)
        far, far_scales = locate(slots_at, row + apart, far_skew)
        if begins:
            begin(raw, near, far, byte)
        for eighth in unroll(2):
            prepare(numbers, pairs, raw, near, far, byte, near_scales, far_scales, eighth)
        finish(even, numbers, pairs)
        pin(even)
        while tile < token_tiles * output_tiles:
            block = types.int32(0)
            while block < blocks:
                for quarter in unroll(QUARTERS):
                    ptx.mbarrier_wait(barriers + 8 * (lap + quarter), parity)
                    activations = a_start + (lap + quarter) * (stage_bytes >> 4)
                    if quarter == 0:
                        multiply_first(sums, even, activations, block)
                    elif quarter == 2:
                        multiply(sums, even, activations)
                    else:
                        multiply(sums, odd, activations)
                    if not ahead:
                        wait_last(sums)
                    # The next k-tile's weights while this one is multiplied.
                    for half in unroll(2):
                        eighth = (2 * quarter + 2 + half) % 8
                        prepare(numbers, pairs, raw, near, far, byte, near_scales, far_scales, eighth)
                    if quarter == read_by:
                        ptx.syncwarp()
                        ptx.mbarrier_arrive_if(barriers + slot_barriers + 8 * (slots + slot), lane == 0)
                    if quarter == 2:
                        # At the very end the last block is unpacked once more, for nothing.
                        if block + 1 < blocks or tile + step < token_tiles * output_tiles:
                            slot, slot_parity = advance_slot(slot, slot_parity)
                            ptx.mbarrier_wait(ready + 8 * slot, slot_parity)
                        place = types.uint32(slots_at + slot * slot_bytes)
                        near, near_scales = locate(place, row, near_skew)
                        far, far_scales = locate(place, row + apart, far_skew)
                        if begins:
                            begin(raw, near, far, byte)
                    if ahead:
                        pin(numbers)
                        wait_last(sums)
                    # The k-tile before is done: its stage and its fragments are free.
                    if quarter > 0:
                        release(barriers, lap + (quarter - 1), thread)
                    elif block > 0:
                        release(barriers, last_stage(lap), thread)
                    else:
                        # Divisions that run under the tensor cores' work.
                        x, y = tile_xy(tile, token_tiles, output_tiles, group)
                        token_tile, output_tile = ptx.uniform(x), ptx.uniform(y)
                        if biased:
                            low_bias = bias_of(bias, output_tile * outputs + row, od)
                            high_bias = bias_of(bias, output_tile * outputs + row + 8, od)
                    if quarter % 2 == 0:
                        finish(odd, numbers, pairs)
                        pin(odd)
                    else:
                        finish(even, numbers, pairs)
                        pin(even)
                block = types.int32(block + 1)
                lap, parity = next_lap(lap, parity)
            wait_sums(sums)
            release(barriers, last_stage(lap), thread)
            if biased:
                add_bias(sums, low_bias, high_bias)
            token, column = token_tile * tokens, output_tile * outputs + consumer * consumer_outputs
            if stored_by_tma:
                store_tile(sums, c, buffer, token, first + column, thread, 1 + consumer, constant)
            else:
                store_elements(
                    sums,
                    c + types.uint64(first * element_bytes),
                    width,
                    token,
                    column + warp * 16,
                    nt,
                    od,
                    lane,
                )
            tile = types.int32(tile + step)
        if stored_by_tma and thread == 0:
            wait_stores()

    @device_function
    def work(a_map, source, bias, c, nt, od, depth, first, width, group, pitch):
        thread = cuda.threadIdx.x
        warpgroup = ptx.uniform(thread >> 7)
        if thread == 0:
            ptx.prefetch_tensor_map(a_map)
            if by_tma:
                ptx.prefetch_tensor_map(source)
            if stored_by_tma:
                ptx.prefetch_tensor_map(c)
        base, barriers = start()
        token_tiles = types.int32((nt + (tokens - 1)) // tokens)
        output_tiles = types.int32((od + (outputs - 1)) // outputs)
        blocks, k_tiles = types.int32(depth >> 8), types.int32(depth >> 6)
        tile, step = types.int32(cuda.blockIdx.x), types.int32(cuda.gridDim.x)
        if warpgroup == 0:
            fewer()
            if thread == 0:
                bring(a_map, base, barriers, tile, step, token_tiles, output_tiles, k_tiles, group)
            if thread >= 32:
                landed = types.uint32(barriers + slot_barriers)
                ready, first_slot = types.uint32(barriers + ready_start), types.uint32(base + slots_start)
                move(
                    source, first_slot, landed, ready, tile, step,
                    token_tiles, output_tiles, blocks, od, pitch, group, types.int32(thread - 32),
                )  # fmt: skip
        else:
            more_registers()
            consumer, within = types.int32(warpgroup - 1), types.int32(thread & 127)
            consume(
                bias, c, base, barriers, tile, step, token_tiles, output_tiles, blocks,
                nt, od, first, width, group, pitch, consumer, within,
            )  # fmt: skip

    pitch_of_256 = config.packed.block_bytes

    def w4a16_tiles(a, w, bias, c, nt, od, depth, first, width, group):
        if by_tma:
            source = ptx.tensor_map_address(w)
        else:
            source = ptx.global_address(w)
        if stored_by_tma:
            target = ptx.tensor_map_address(c)
        else:
            target = ptx.global_address(c)
        pitch = types.int32((depth >> 8) * pitch_of_256)
        a_map, added = ptx.tensor_map_address(a), ptx.global_address(bias)
        work(a_map, source, added, target, nt, od, depth, first, width, group, pitch)

    arguments = (
        Argument("a", "tensor_map", "float16"),
        Argument("w", "tensor_map" if by_tma else "in", "uint8"),
        Argument("bias", "in", "float32", present=config.bias),
        Argument("c", "tensor_map", "float16", stored=True)
        if stored_by_tma
        else Argument("c", "out", {"f16": "float16", "f32": "float32"}[config.out]),
        *(Argument(name, "scalar", "int32") for name in ("nt", "od", "depth", "first", "width", "group")),
    )

    return Kernel(
        name="w4a16",
        config=config,
        function=w4a16_tiles,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
    )


def shipped() -> list[Kernel]:
    """Every tile that `choose` picks for f16, for gated products of Q4_K, and one of every other form."""
    tiles = [W4A16Config(name, *tile) for name in FORMATS for tile in TILES[name]]
    narrow = next(tile for tile in TILES["Q6_K"] if tile[0] == 128)
    others = [W4A16Config(name, *narrow, out="f32", store="direct", bias=True) for name in FORMATS]
    gated = [W4A16Config("Q4_K", *tile, gated=True) for tile in TILES["Q4_K"]]
    gated.append(W4A16Config("Q6_K", *narrow, gated=True))
    return [w4a16(config) for config in (*tiles, *others, *gated)]
