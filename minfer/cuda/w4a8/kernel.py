"""C[nt, od] = A[nt, id] W[od, id]^T on Hopper with Q4_K weights and int8 activations, by s8 wgmma.

The skeleton is W4A16's: transposed, persistent, weights unpacked in registers. Weights become unsigned bytes
(`minfer.cuda.w4a8.formats`), so that 512 columns of k are summed in integers before one rescale by a row's
and a token's scale: exact in f32, since 512 * 255 * 127 < 2^24. Activations come quantized a token and group
of 512 (`minfer.cuda.w4a8.quantize`).

Compared with W4A16 the tensor cores run at twice the rate; what it costs is precision: each operand is
rounded to 8 bits of its largest.
"""

from __future__ import annotations

from functools import cache

from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.w4a8.config import W4A8Config
from minfer.cuda.w4a8.formats import BLOCK_BYTES, GROUP, GROUP_BLOCKS, MINIMA_PITCH, PLANE_BYTES, RUNS
from minfer.cuda.w4a16.packed_tile import CONSUMERS, MOVERS, REGISTERS, ROWS


@cache
def w4a8(config: W4A8Config) -> Kernel:
    """The kernel of a config: (a, sums, scales, w, c, nt, od, depth, first, group), tensor maps and int32.
    With `gated` c is silu(gate) * up of products with od rows each, which follow each other in w.

    a is int8 [nt, depth], sums f32 [nt, depth / 32], scales f32 [depth / 512, pitch] (a column a token, pitch
    a multiple of 4), w uint8 [od, row bytes] of Q4_K blocks with d >= 0 (the caller has looked), c
    f16 [nt, width], where the product's columns start at `first`. Boxes and swizzles: `config.boxes`. depth
    is a multiple of 512; group is `config.group(nt)`, the grid `config.grid`. For a product that ends before
    `width` see `minfer.cuda.w4a16.kernel.w4a16`."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.elementwise.activation import silu_product_by
    from minfer.cuda.instruction import device_function, unroll, unrolled
    from minfer.cuda.tile.scheduler import next_in_rounds, tile_xy
    from minfer.cuda.tile.transposed import store_tile_transposed
    from minfer.cuda.w4a8.formats import expand, fragments
    from minfer.cuda.w4a16.activations import bring_activations
    from minfer.cuda.w4a16.prologue import start_rings

    tokens, outputs, threads = config.tokens, config.outputs, 32 * MOVERS
    stages, stage_bytes = config.stages, config.stage_bytes
    slots, slot_bytes, landing_bytes = config.slots, config.slot_bytes, config.landing_bytes
    sums_start, scales_start, rows_start = config.sums_start, config.scales_start, config.rows_start
    factors_start, minima_start = config.factors_start, config.minima_start
    slots_start, buffers_start = config.slots_start, config.buffers_start
    buffers_bytes = config.buffers * config.chunk_bytes
    slot_barriers = config.ring.size_bytes
    ready_start, constant_start = config.ready_start, config.constant_start
    accumulators = tokens // 2
    advance, advance_slot = config.ring.advance, config.slot_ring.advance
    few, many = REGISTERS[CONSUMERS]
    fewer, more_registers = ptx.setmaxnreg("dec", few), ptx.setmaxnreg("inc", many)
    bring, descriptor = bring_activations(config, next_in_rounds, tokens), ptx.wgmma_descriptor
    start = start_rings(config, ready_arrivals=MOVERS)
    multiply_first = ptx.wgmma(tokens, "u8", a="registers", k_steps=4, accumulate=False, wait=1)
    multiply = ptx.wgmma(tokens, "u8", a="registers", k_steps=4, wait=1)
    subtract_minima = ptx.wgmma(
        tokens, "tf32", a="registers", k_steps=RUNS // 8, accumulate="operand", swizzle=64
    )
    wait_integers = ptx.wgmma_wait(0, accumulators, "s32")
    wait_sums, pin = ptx.wgmma_wait(0, accumulators), ptx.pin(16)
    wait_stores = ptx.bulk_wait_group_read(0)
    # Gates and the ups that belong to them are rows g and g + 8 of the fragments.
    gated, consumer_outputs = config.gated, outputs // CONSUMERS
    warp_rows, apart = (8, ROWS // 2) if gated else (16, 8)
    blocks_apart, words_apart, half_plane = apart * BLOCK_BYTES, apart * 4, PLANE_BYTES // 2
    store_tile = store_tile_transposed(tokens, config.buffers, silu_product_by if gated else None)

    @device_function
    def move(
        sums, scales, w, first, landed, ready, tile, step,
        token_tiles, output_tiles, groups, group, od, thread,
    ):  # fmt: skip
        """Blocks, and what belongs to the activations, of all groups of all tiles into the slots."""
        tiles = token_tiles * output_tiles
        total = types.int32(ptx.udiv_u32(tiles - tile + step - 1, step) * groups)
        slot, parity = types.uint32(0), types.uint32(0)
        next_slot, next_parity = types.uint32(0), types.uint32(1)
        row, token, k = types.int32(0), types.int32(0), types.int32(0)
        done = types.int32(1 - slots)
        while done < total:
            if done >= 0:
                place = types.uint32(first + slot * slot_bytes)
                ptx.mbarrier_wait(landed + 8 * slot, parity)
                line = types.int32(thread)
                while line < ROWS:
                    expand(place, line, place + factors_start, place + minima_start, place + rows_start)
                    line = types.int32(line + threads)
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(ready + 8 * slot, (thread & 31) == 0)
                slot, parity = advance_slot(slot, parity)
            if tile < tiles:
                if k == 0:
                    x, y = tile_xy(tile, token_tiles, output_tiles, group)
                    token, row = types.int32(x * tokens), types.int32(y * outputs)
                ptx.mbarrier_wait(landed + 8 * (slots + next_slot), next_parity)
                place, full = types.uint32(first + next_slot * slot_bytes), landed + 8 * next_slot
                if thread == 0:
                    ptx.mbarrier_arrive_expect_tx(full, landing_bytes)
                    column = k * (GROUP_BLOCKS * BLOCK_BYTES)
                    ptx.tma_load_2d(place, w, full, column, row)
                    ptx.tma_load_2d(place + PLANE_BYTES, w, full, column + BLOCK_BYTES, row)
                    if gated:
                        up = place + half_plane
                        ptx.tma_load_2d(up, w, full, column, od + row)
                        ptx.tma_load_2d(up + PLANE_BYTES, w, full, column + BLOCK_BYTES, od + row)
                    ptx.tma_load_2d(place + sums_start, sums, full, k * RUNS, token)
                    ptx.tma_load_2d(place + scales_start, scales, full, token, k)
                next_slot, next_parity = advance_slot(next_slot, next_parity)
                k = types.int32(k + 1)
                if k == groups:
                    k = types.int32(0)
                    tile = types.int32(tile + step)
            done = types.int32(done + 1)

    @device_function
    @unrolled
    def load_minima(a, place):
        """The tf32 fragments of both k8 steps: columns t and t + 4 of rows g and g + 8."""
        for k in unroll(2):
            for half in unroll(2):
                at = place + (8 * k + 4 * half) * MINIMA_PITCH
                a[4 * k + 2 * half] = ptx.ld_shared_u32(at)
                a[4 * k + 2 * half + 1] = ptx.ld_shared_u32(at + words_apart)

    @device_function
    @unrolled
    def rescale(sums, integers, low, high, scales):
        """sums += row's scale * token's scale * integers."""
        for j in unroll(tokens // 8):
            x, y = ptx.ld_shared_v2_f32(scales + 32 * j)
            for row in unroll(2):
                scale = low if row == 0 else high
                o = 4 * j + 2 * row
                sums[o] = ptx.fma_rn_f32(scale * x, ptx.cvt_rn_f32_s32(integers[o]), sums[o])
                sums[o + 1] = ptx.fma_rn_f32(scale * y, ptx.cvt_rn_f32_s32(integers[o + 1]), sums[o + 1])

    @device_function
    def unpack_first(even, place, block_at, row):
        """The fragments of a group's first k-tile."""
        near, factors = place + block_at, place + factors_start + row * 4
        fragments(even, near, near + blocks_apart, factors, words_apart, 0)
        pin(even)

    @device_function
    @unrolled
    def consume(
        c, base, barriers, tile, step, token_tiles, output_tiles, groups, first, group, consumer, thread
    ):
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        row = types.int32(consumer * consumer_outputs + warp * warp_rows + (lane >> 2))
        quad, constant = types.uint32(lane & 3), types.uint32(barriers + constant_start)
        sums = cuda.local.array(accumulators, dtype=types.float32)
        integers = cuda.local.array(accumulators, dtype=types.int32)
        even = cuda.local.array(16, dtype=types.uint32)
        odd = cuda.local.array(16, dtype=types.uint32)
        minima = cuda.local.array(8, dtype=types.uint32)
        for i in range(accumulators):
            sums[i] = types.float32(0)
        a_start = descriptor(base, 16)
        slots_at, ready = types.uint32(base + slots_start), types.uint32(barriers + ready_start)
        buffer = types.uint32(base + buffers_start + consumer * buffers_bytes)
        stage, parity, previous = types.uint32(0), types.uint32(0), types.uint32(0)
        slot, slot_parity = types.uint32(0), types.uint32(0)
        token_tile, output_tile = types.int32(0), types.int32(0)
        block_at = types.uint32(row * BLOCK_BYTES + 4 * quad)
        ptx.mbarrier_wait(ready, 0)
        place = slots_at
        unpack_first(even, place, block_at, row)
        while tile < token_tiles * output_tiles:
            k = types.int32(0)
            while k < groups:
                near = types.uint32(place + block_at)
                far, factors = near + blocks_apart, types.uint32(place + factors_start + row * 4)
                rows, scales = types.uint32(place + rows_start + row * 4), place + scales_start + 8 * quad
                load_minima(minima, place + minima_start + quad * MINIMA_PITCH + row * 4)
                subtract_minima(sums, minima, descriptor(place + sums_start, 16), k)
                for quarter in unroll(4):
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    activations = a_start + stage * (stage_bytes >> 4)
                    if quarter == 0:
                        multiply_first(integers, even, activations)
                    if quarter == 2:
                        multiply(integers, even, activations)
                    if quarter % 2 == 1:
                        multiply(integers, odd, activations)
                    # The k-tile before is done: its stage and its fragments are free.
                    if quarter > 0:
                        ptx.mbarrier_arrive_if(barriers + 8 * (stages + previous), thread == 0)
                    if quarter == 0 and k == 0:
                        x, y = tile_xy(tile, token_tiles, output_tiles, group)
                        token_tile, output_tile = ptx.uniform(x), ptx.uniform(y)
                    previous = stage
                    stage, parity = advance(stage, parity)
                    if quarter == 0:
                        fragments(odd, near, far, factors, words_apart, 1)
                        pin(odd)
                    if quarter == 1:
                        fragments(even, near, far, factors, words_apart, 2)
                        pin(even)
                    if quarter == 2:
                        fragments(odd, near, far, factors, words_apart, 3)
                        pin(odd)
                old_slot = slot
                # At the very end the last group is unpacked once more, for nothing.
                if k + 1 < groups or tile + step < token_tiles * output_tiles:
                    slot, slot_parity = advance_slot(slot, slot_parity)
                    ptx.mbarrier_wait(ready + 8 * slot, slot_parity)
                place = types.uint32(slots_at + slot * slot_bytes)
                unpack_first(even, place, block_at, row)
                wait_integers(integers)
                wait_sums(sums)
                ptx.mbarrier_arrive_if(barriers + 8 * (stages + previous), thread == 0)
                rescale(
                    sums, integers, ptx.ld_shared_f32(rows), ptx.ld_shared_f32(rows + words_apart), scales
                )
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(barriers + slot_barriers + 8 * (slots + old_slot), lane == 0)
                k = types.int32(k + 1)
            store_tile(
                sums,
                c,
                buffer,
                token_tile * tokens,
                first + output_tile * outputs + consumer * consumer_outputs,
                thread,
                1 + consumer,
                constant,
            )
            tile = types.int32(tile + step)
        if thread == 0:
            wait_stores()

    def kernel(a, sums, scales, w, c, nt, od, depth, first, group):
        a_map, sums_map, scales_map = (
            ptx.tensor_map_address(a),
            ptx.tensor_map_address(sums),
            ptx.tensor_map_address(scales),
        )
        w_map, c_map = ptx.tensor_map_address(w), ptx.tensor_map_address(c)
        thread = cuda.threadIdx.x
        warpgroup = ptx.uniform(thread >> 7)
        if thread == 0:
            ptx.prefetch_tensor_map(a_map)
            ptx.prefetch_tensor_map(w_map)
        base, barriers = start()
        token_tiles = types.int32((nt + (tokens - 1)) // tokens)
        output_tiles = types.int32((od + (outputs - 1)) // outputs)
        k_tiles = types.int32(depth >> 7)
        groups = types.int32(depth // GROUP)
        tile, step = types.int32(cuda.blockIdx.x), types.int32(cuda.gridDim.x)
        if warpgroup == 0:
            fewer()
            if thread == 0:
                bring(
                    a_map, base, barriers, tile, step, 0, token_tiles, output_tiles, 0, k_tiles, group,
                    types.uint32(0), types.uint32(1),
                )  # fmt: skip
            if thread >= 32:
                landed = types.uint32(barriers + slot_barriers)
                ready, first_slot = types.uint32(barriers + ready_start), types.uint32(base + slots_start)
                move(
                    sums_map, scales_map, w_map, first_slot, landed, ready, tile, step,
                    token_tiles, output_tiles, groups, group, od, types.int32(thread - 32),
                )  # fmt: skip
        else:
            more_registers()
            consumer, within = types.int32(warpgroup - 1), types.int32(thread & 127)
            consume(
                c_map, base, barriers, tile, step, token_tiles, output_tiles, groups,
                first, group, consumer, within,
            )  # fmt: skip

    arguments = (
        Argument("a", "tensor_map", "int8"),
        Argument("sums", "tensor_map", "float32"),
        Argument("scales", "tensor_map", "float32"),
        Argument("w", "tensor_map", "uint8"),
        Argument("c", "tensor_map", "float16", stored=True),
        *(Argument(name, "scalar", "int32") for name in ("nt", "od", "depth", "first", "group")),
    )
    return Kernel(
        name="w4a8",
        config=config,
        function=kernel,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
    )


def shipped() -> list[Kernel]:
    """The tiles worth having, and the quantizers."""
    from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups

    tiles = [w4a8(W4A8Config(128, 5, gated=gated)) for gated in (False, True)]
    return [*tiles, *(quantize_groups(QuantizeGroupsConfig(source)) for source in ("f16", "f32"))]
