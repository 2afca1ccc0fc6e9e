"""C[nt, od] = A[nt, id] W[od, id]^T on Hopper with W as Q4_K or Q6_K blocks: no f16 copy of the weights.

The product is computed transposed, since only wgmma's A operand may come from registers: a tile's rows are
128 or 192 outputs, its columns up to 256 tokens. Warpgroup 0 brings both operands: one thread loads the
activations' k-tiles of 64 by TMA into a ring of stages, three warps the weights' blocks into a ring of slots
(`minfer.cuda.w4a16.movers`). The other warpgroups hold 64 rows each (`minfer.cuda.w4a16.consumers`): they
unpack a k-tile's weights into fragments (`minfer.cuda.w4a16.formats`) while the tensor cores work on the one
before; no unpacked weight is written anywhere. One block a multiprocessor takes tile after tile.

- Each weight becomes f16 with one rounding (Q4_K) or is an exact 6-bit number times an f16 scale (Q6_K): the
  result is as exact as that of a GEMM over an f16 copy, up to the scales' own rounding to f16.
- The tokens of a tile are chosen so that the tiles fill whole waves of multiprocessors (`choose`).
- While wgmma is in flight nothing branches by lane (C7518), and fragments are pinned before the next wait.
- q, k and v are one launch though v is of another format (`choose_pair`): a thread block that is done with
  its tiles of v goes on with those of q and k, in code of its own but the same rings. A tile of Q6_K takes
  longer to unpack than to multiply. So v comes first and the last round of tiles is dealt in reverse
  (`last_reversed`): blocks that began with v end with *narrow* tiles, the last tokens' where those are few.
  Its tiles have tokens of their own, by a tensor map of their own: more of them where there are several
  rounds, so that v is unpacked more seldom (232 beside 192 at 2048 tokens), fewer in a single round, so that
  they end with those of q and k (96 beside 176 at 512 tokens: 54.7 -> 48.1 kilocycles, as foretold).
- Few tokens take few tiles, wide ones, so that a weight is unpacked in few of them, and two or four blocks
  share a tile, each with a part of its depth (`minfer.cuda.gemm_hopper.split`). down in kilocycles, foretold
  in brackets: 512 tokens Q4_K 185 -> 172 (162), Q6_K 221 -> 176 (166); 256 tokens 139 -> 99 (98), 190 -> 102
  (99); 128 tokens 138 -> 65 (61), 191 -> 74 (73).
- Where all tiles are alike, rounds have as many blocks each (128 of 132 for down at 8192 tokens: 0.5 and 0.7
  percent less time sustained), as a round is a rectangle of tiles then.
- A launch overlaps the end of the kernel before (`pdl`): its first blocks of weights come meanwhile. That is
  1.5-2 of 90 us (q, k, v), 4 of 400 (down).

What was tried on an H200 and lost: two or three wgmma groups in flight (the assembler serialises them all,
C7513); k-tiles of 128 (no faster for any tile); narrow tiles that fill more waves (152 tokens: unpacking
takes longer than multiplying). Scales are named in the operand: copied to both halves by prmt they are 57
instructions more. Q6_K's rows by a bulk copy each: a warp starts them one lane after the other, 594 us for
down instead of 406. Three consumers of Q6_K, at 160 tokens: 508 us instead of 399. Tiles of 192 rows in which
consumers have either format, two full waves for q, k and v: no faster than three of 128 rows (95.0 and 94.9
us, sustained 108.8 and 104.9), for the same reason. Awaiting the next k-tile right behind wgmma, which keeps
the assembler from moving unpacking between the four of a group: up to 2 % slower. Three slots for down's
Q6_K: no gain. A k16 step unpacked and loaded behind each wgmma, evenly, four groups a k-tile: Q6_K 610 to 630
kilocycles of down instead of 591, Q4_K as many as before. For 64 tokens 4 stages and more slots are up to 15
% slower than 8 and 3; more slots for 128, 176, 192 and 256 tokens at 512 tokens no faster. Wider tiles for v
in boxes of one size for both matrices: 160 kilocycles instead of 147, a fifth more bytes for q and k. Two
blocks a tile of 256 tokens for 3584 x 3584 at 512 tokens: 44 kilocycles instead of 39, the exchange is as
long as what it saves.

What holds Q6_K back is a consumer's time: it multiplies and unpacks by turns (`UNPACKING`), and an
instruction of its warp takes some four cycles while the tensor cores use the registers. So it counts that the
warps that copy load all of a row's scales before they convert any, that a quarter's bytes are loaded a k-tile
before they are unpacked (down: 597 kilocycles, without 646), and every instruction less: 135 a k-tile
instead of 145 are 592 kilocycles; Q4_K has 111. At 8192 tokens it is power: in bursts down in Q6_K takes 1.7
percent more cycles than cuBLAS at a clock 5.2 percent lower, in Q4_K 0.5 percent fewer at one 2.3 lower.

By experiments on an H200 until 2026-12-01 (records may be of other tiles), of cuBLAS's speed on an f16 copy,
at 2048 tokens of a 7B, in bursts and sustained: Q4_K 1.01 and 1.01 (qkv), 1.07 and 1.13 (o), 1.02 and 1.02
(gate and up), 1.04 and 1.10 (down), Q6_K 0.98 and 1.07 (down), q and k in Q4_K with v in Q6_K 0.98 and 0.985
(0.97 and 0.97 with as many tokens a tile for v, 0.96 with tiles dealt in order). At 512 tokens: qkv 0.93 and
0.87, o 0.89 and 0.85, down 0.95 and 0.86, in Q6_K 0.92 and 0.84, the pair 0.90 and 0.845: what is left is
unpacking that takes longer than the products of few tokens, and the exchange. A launch for v alone comes on
top of one for q and k that is hardly shorter than one for all three.
"""

from __future__ import annotations

from functools import cache

from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.w4a16.choice import SPLIT_TILES, SPLITS, TILES
from minfer.cuda.w4a16.config import FORMATS, NARROW, PAIR, W4A16Config
from minfer.cuda.w4a16.formats import QUARTERS
from minfer.cuda.w4a16.packed_tile import MOVERS, REGISTERS


@cache
def w4a16(config: W4A16Config) -> Kernel:
    """The kernel of a config: (a, w, [other, [a_other]], [bias], c, nt, od, depth, first, width, group,
    [other_od, other_first], [parts, ready]). With `gated` c is silu(gate) * up of products with od rows each,
    which follow each other in w.

    a is the tensor map of A [nt, depth] f16. w holds the blocks of `od` rows (gated: 2 od): a tensor map of
    uint8 [rows, row bytes] for Q4_K, the uint8 array itself for Q6_K. bias is f32 [od]. c is C [nt, width],
    f16 or f32: a tensor map with store="tma", else the array; the product's columns start at `first`. (Boxes
    and swizzles: `config.boxes`.) Sizes are int32; depth is a multiple of 256; group is `config.group(nt)`,
    the grid `config.grid`. A pair has w in Q4_K and `other` in Q6_K, `other_od` rows whose columns start at
    `other_first`; its grid is that of both's outputs, and with `other_tokens` a_other is A again, by a map of
    other boxes. With split_k parts is f32, ready uint32, both as long as `split_workspace` says, ready zero
    before and after.

    Every element of the product is written. With store="tma" a product that ends before `width` writes zeros
    or rubbish to columns past its end, up to the next multiple of a tile's from `first`: products into
    neighbouring columns must be launched in ascending order; what comes first of a pair fills its tiles."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.gemm_hopper.split import Exchange, share_among
    from minfer.cuda.instruction import device_function
    from minfer.cuda.tile.scheduler import last_reversed, next_in_rounds
    from minfer.cuda.tile.seats import MOST_SEATS
    from minfer.cuda.w4a16.activations import bring_activations
    from minfer.cuda.w4a16.consumers import consume_tiles
    from minfer.cuda.w4a16.movers import move_weights
    from minfer.cuda.w4a16.prologue import start_rings

    stored_by_tma, outputs = config.store == "tma", config.outputs
    tokens, other_tokens = config.tokens, config.second_tokens
    slot_barriers, ready_start, slots_start = config.ring.size_bytes, config.ready_start, config.slots_start
    packed, second = config.parts[0], config.parts[-1]
    by_tma, paired = packed.by_tma, len(config.parts) == 2
    block_bytes, other_block_bytes = packed.block_bytes, second.block_bytes
    few, many = REGISTERS[config.consumers]
    fewer, more_registers = ptx.setmaxnreg("dec", few), ptx.setmaxnreg("inc", many)
    wait_stores = ptx.bulk_wait_group_read(0)
    start = start_rings(config, MOVERS, second.magic)
    following = last_reversed if paired else next_in_rounds
    narrow = NARROW if config.narrow else 0
    bring, bring_other = (bring_activations(config, following, n) for n in (tokens, other_tokens))
    move, move_other = (move_weights(config, part, following) for part in (packed, second))
    consume = consume_tiles(config, packed, tokens, following, last=True, narrow=narrow)
    consume_other = consume_tiles(config, second, other_tokens, following, last=False)
    split_k, twice = config.split_k > 1, config.other_tokens > 0
    exchange = Exchange(tokens // 2, config.stage_bytes, config.ring, max(2, config.split_k))
    share, locate, fetch = share_among(exchange.parts), exchange.place, exchange.fetch

    @device_function
    def work(
        a_map, source, other, other_map, bias, c, nt, od, depth, first, width, group, other_od, other_first,
        parts, counters,
    ):  # fmt: skip
        thread = cuda.threadIdx.x
        warpgroup = ptx.uniform(thread >> 7)
        if thread == 0:
            ptx.prefetch_tensor_map(a_map)
            if twice:
                ptx.prefetch_tensor_map(other_map)
            if by_tma:
                ptx.prefetch_tensor_map(source)
            if stored_by_tma:
                ptx.prefetch_tensor_map(c)
        base, barriers = start()
        ptx.griddepcontrol_launch_dependents()
        token_tiles = types.int32((nt + (tokens - 1)) // tokens)
        output_tiles = types.int32((od + (outputs - 1)) // outputs)
        blocks, k_tiles = types.int32(depth >> 8), types.int32(depth >> 6)
        pitch, other_pitch = types.int32(blocks * block_bytes), types.int32(blocks * other_block_bytes)
        tile, step = types.int32(cuda.blockIdx.x), types.int32(cuda.gridDim.x)
        tiles = types.int32(token_tiles * output_tiles)
        others, other_tiles, other_token_tiles = types.int32(0), types.int32(0), types.int32(0)
        wide, last_round = tiles, types.int32(0)
        if paired:
            # The second matrix, whose tiles take longest, comes first; narrow tiles of the first come last.
            others = types.int32((other_od + (outputs - 1)) // outputs)
            other_token_tiles = types.int32((nt + (other_tokens - 1)) // other_tokens)
            other_tiles = types.int32(other_token_tiles * others)
            last_round = types.int32(ptx.udiv_u32(tiles + other_tiles - 1, step) * step)
            whole = types.int32(token_tiles - 1)
            if nt - whole * tokens <= narrow and whole == ptx.udiv_u32(whole, group) * group:
                wide = types.int32(tiles - output_tiles)
        last = types.int32(last_round - other_tiles)
        part, origin = types.int32(0), types.int32(0)
        if split_k:
            tile, part, origin, blocks = share(tile, tiles, blocks)
            k_tiles, step = types.int32(blocks * QUARTERS), tiles
        workspace, k_first = (parts, counters), types.int32(origin * QUARTERS)
        if warpgroup == 0:
            fewer()
            if thread == 0:
                # Only the weights are touched before the kernel before has ended.
                ptx.griddepcontrol_wait()
                stage, phase = types.uint32(0), types.uint32(1)
                if paired:
                    tile, stage, phase = bring_other(
                        other_map, base, barriers, tile, step, last_round, other_token_tiles, others, k_first,
                        k_tiles, group, stage, phase,
                    )  # fmt: skip
                _, stage, phase = bring(
                    a_map, base, barriers, types.int32(tile - other_tiles), step, last, token_tiles,
                    output_tiles, k_first, k_tiles, group, stage, phase,
                )  # fmt: skip
                if split_k:
                    there, counter = locate(parts, counters, tile, part)
                    fetch(there, counter, base, barriers, stage, phase)
            if thread >= 32:
                landed = types.uint32(barriers + slot_barriers)
                ready, first_slot = types.uint32(barriers + ready_start), types.uint32(base + slots_start)
                mover = types.int32(thread - 32)
                place, turn = types.uint32(1), types.uint32(1)
                if paired:
                    tile, place, turn = move_other(
                        other, first_slot, landed, ready, tile, step, last_round, other_token_tiles, others,
                        origin, blocks, other_od, other_pitch, group, mover, place, turn,
                    )  # fmt: skip
                move(
                    source, first_slot, landed, ready, types.int32(tile - other_tiles), step, last,
                    token_tiles, output_tiles, origin, blocks, od, pitch, group, mover, place, turn,
                )  # fmt: skip
        else:
            more_registers()
            ptx.griddepcontrol_wait()
            consumer, within = types.int32(warpgroup - 1), types.int32(thread & 127)
            own = source
            if split_k and not by_tma:
                own = source + types.uint64(types.uint32(origin * block_bytes))
            lap, parity = types.uint32(0), types.uint32(0)
            slot, slot_parity = types.uint32(0), types.uint32(0)
            if paired and tile < other_tiles:
                tile, lap, parity, slot, slot_parity = consume_other(
                    other, bias, c, base, barriers, tile, step, last_round, other_token_tiles, others,
                    other_tiles, workspace, blocks, nt, other_od, other_first, width, group, other_pitch,
                    consumer, within, lap, parity, slot, slot_parity,
                )  # fmt: skip
            if not paired or tile - other_tiles < tiles:
                consume(
                    own, bias, c, base, barriers, types.int32(tile - other_tiles), step, last,
                    token_tiles, output_tiles, wide, workspace, blocks, nt, od, first, width, group, pitch,
                    consumer, within, lap, parity, slot, slot_parity,
                )  # fmt: skip
            if stored_by_tma and within == 0:
                wait_stores()

    def w4a16_tiles(
        a, w, other, a_other, bias, c, nt, od, depth, first, width, group, other_od, other_first, parts, ready
    ):
        if by_tma:
            source = ptx.tensor_map_address(w)
        else:
            source = ptx.global_address(w)
        if stored_by_tma:
            target = ptx.tensor_map_address(c)
        else:
            target = ptx.global_address(c)
        a_map, second_source = ptx.tensor_map_address(a), ptx.global_address(other)
        other_map = ptx.tensor_map_address(a_other) if twice else a_map
        work(
            a_map, source, second_source, other_map, ptx.global_address(bias), target, nt, od, depth, first,
            width, group, other_od, other_first, ptx.global_address(parts), ptx.global_address(ready),
        )  # fmt: skip

    def sizes(*names: str, present: bool = True) -> tuple[Argument, ...]:
        return tuple(Argument(name, "scalar", "int32", present=present) for name in names)

    arguments = (
        Argument("a", "tensor_map", "float16"),
        Argument("w", "tensor_map" if by_tma else "in", "uint8"),
        Argument("other", "in", "uint8", present=paired),
        Argument("a_other", "tensor_map", "float16", present=twice),
        Argument("bias", "in", "float32", present=config.bias),
        Argument("c", "tensor_map", "float16", stored=True)
        if stored_by_tma
        else Argument("c", "out", {"f16": "float16", "f32": "float32"}[config.out]),
        *sizes("nt", "od", "depth", "first", "width", "group"),
        *sizes("other_od", "other_first", present=paired),
        Argument("parts", "inout", "float32", align=16, present=split_k),
        Argument("ready", "inout", "uint32", cleared=MOST_SEATS, present=split_k),
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
        cooperative=split_k,
    )


def shipped() -> list[Kernel]:
    """Every tile that `choose` and `choose_pair` pick for f16, for gated products of Q4_K, and one of every
    other form."""
    tiles = [W4A16Config(name, *tile) for name in TILES for tile in TILES[name]]
    tiles += [W4A16Config(f, *tile, split_k=n) for f in FORMATS for tile in SPLIT_TILES for n in SPLITS]
    narrow = next(tile for tile in TILES["Q6_K"] if tile[0] == 128)
    others = [W4A16Config(name, *narrow, out="f32", store="direct", bias=True) for name in FORMATS]
    others += [W4A16Config(name, *narrow, out="f32", store="direct", split_k=4) for name in FORMATS]
    others.append(W4A16Config(PAIR, *narrow, out="f32", store="direct"))
    gated = [W4A16Config("Q4_K", *tile, gated=True) for tile in TILES["Q4_K"]]
    gated.append(W4A16Config("Q6_K", *narrow, gated=True))
    return [w4a16(config) for config in (*tiles, *others, *gated)]
