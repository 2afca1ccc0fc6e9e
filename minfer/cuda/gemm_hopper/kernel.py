"""C[nt, od] = A[nt, id] B[od, id]^T on Hopper: wgmma, TMA, persistent blocks; f16 operands, f32 sums, f16 or
f32 results.

K-tiles of 64 come by TMA into a ring of stages. Two or three warpgroups are consumers of 64 or 128 rows x
`tile_m` columns each; they write their tile through shared memory with TMA stores that drain under the next
tile's main loop. Another warpgroup is the producer, of which one thread issues the loads; tiles of 256 tokens
do without, as sums need its registers: there a warp of the first consumer loads a k-tile into each stage that
all have read. One block a multiprocessor takes tile after tile. What is done to a tile on its way out is the
epilogue: nothing ("store"), the sum with what C holds ("add": the residual stream, in L2 by TMA), the
activation of a gated feed-forward ("swiglu": B is the gate and the up matrix one above the other, and a tile
takes half of its rows from each, so that both values of an output are in one thread), or what stands between
q, k, v and attention ("rope": biases, RoPE and the KV store, see `minfer.cuda.gemm_hopper.heads`).

- The tile is chosen for each problem so that its count fills whole waves of multiprocessors (`choose`).
- Larger tiles move fewer bytes a FLOP, and the wall is power: 256 x 224 takes 4 to 5 percent less time than
  128 x 256 in about the same cycles (3584 columns at 8192 tokens, in bursts).
- A long product's blocks have equal waves, so that a wave is a rectangle of tiles: 1 percent of that, as
  fewer bytes come from memory.
- The first k-tile overwrites the sums, by an instruction of its own: so they are free from the epilogue on.
- What is the same in a whole warp goes through `ptx.uniform`, so that descriptors live in uniform registers.
- A short product is a dependent launch (`minfer.cuda.dependent`): its first tiles of B, which the kernel
  before does not write, are loaded while that one ends. Blocks start wherever room becomes free first then;
  by seats (`minfer.cuda.tile.seats`) neighbours in the order of tiles are neighbours on the chip.
- The two blocks of rows of 256-token tiles are apart at a tile's ends, so that one is stored while the other
  is multiplied (`minfer.cuda.gemm_hopper.skewed`): 0.3 to 1.6 percent fewer cycles at 8192 tokens.
- The descriptors' high words come in registers: as constants they were 8 of a consumer's 38 instructions a
  k-tile.
- The ring's mbarriers are used without cluster scope (each such release or acquire is a fence of the whole
  GPU), and a consumer releases a stage one k-tile late, when its wgmmas have certainly read it.

What was tried on an H200 and lost: two blocks that share a tile of 128 x 224 at 512 tokens, each with half of
the depth, and exchange sums at its end (3584 x 3584: 23.1 us where 128 x 112 tiles take 19.8; 3584 x 18944:
95.3 and 95.7; without the exchange, and with wrong results, 19.3 and 91.8; with a lead the deeper one wins:
`minfer.cuda.gemm_hopper.split`); the same with the exchange in the middle,
under k-tiles of 128 x 112 (21.6, and 94.2 in bursts, where the clock is higher; under a load that lasts 1 to
3 percent more than without); stream-k, the last wave's tiles cut along k with the sums handed on through L2
(291 us where 128 x 256 takes 279: 3584 x 3584 at 8192 tokens; 0.7 percent slower where no tile is cut);
k-tiles of 128 (half the barriers, but three stages: 110 us instead of 95); clusters of 4 (30 of them fit);
other orders of tiles (`minfer.cuda.tile.scheduler`; a random one takes a quarter more time at 3584 x 18944
and 512 tokens); clusters of 2, which share a tile of A or of B by multicast (512 tokens: 2-4 percent slower;
2048: 1; 8192: no faster): the hardware deals them out to all GPCs in turn, where requests for the other
operand no longer meet on their way to L2; such clusters as dependent launches by seats (16 percent slower at
3584 x 18944 and 512 tokens, 60 at 3584 x 3584); dependent launches without seats (0.1 to 1.1 percent less
time at 512 tokens, with them 1.4 to 1.9), or with places by the multiprocessors' numbers (4 to 8 percent
more: those of a GPC do not follow each other); for 3584 columns at 8192 tokens tiles of 256 x 184, 192 x 200,
256 x 192 and 256 x 152 (1 to 4 percent slower than 128 x 256, though they move 11 to 22 percent fewer bytes);
no producer beside tiles of fewer tokens (4, 2 and 1 percent slower for down, o and q+k+v at 512 tokens); C
through the stage of the last k-tile as well, four buffers a warp instead of two (no faster); L2 policies
(37888 x 3584 at 8192 tokens: A to be evicted last, B and C first, 0.6 percent less time, 1.4 with a producer;
nothing elsewhere, and 2.5 percent more for 3584 x 18944, where B is needed again); the wgmmas of both blocks
of 64 rows by turns (no faster).

What the last steps brought: tiles of 256 x 224 without a producer at 8192 tokens 3.7 percent for o and 5.0
for down (read from memory 161 and 854 MB instead of 241 and 1361, as waves of 128 blocks foretell), at 2048
tokens 1.4 to 2.9 and 3.5; added to f32, as a model's layers have them, 2.3 and 5.0, 2.0 and 4.3; no producer
beside 256 x 192 1.0 percent at 8192 tokens, 0.2 to 0.7 at 2048 and 512. At 512 tokens, in bursts (percent for
o, q+k+v, gate+up, down): tensor maps that have L2 fetch 128 bytes and not 256, 0.5, 0.4, 2.0, 0.5; dependent
launches with seats then 0.5, 1.0, 0.1, 0.0 (without that 1.7, 1.9, 0.6, 1.4 in one run, 0.9, 1.1, 0.6, 0.1 in
another); high words in registers then 0.9, 0.4, 0.3, 0.2. At 2048 tokens dependent launches bring 0.5 percent
to q+k+v and 1.1 to o; longer products gain nothing.

In bursts the clock follows what comes from memory too: an order of tiles with 1.75 times the bytes takes 4
percent longer in the same cycles (3584 x 18944 at 8192 tokens). Under a load of its own for 0.6 s a product
of 3584 x 18944 at 8192 tokens takes 1142 mJ (128 x 256: 1172, cuBLAS 1167) and 1656 us (1762, 1711). Where
contestants take turns within milliseconds they share a clock, and only cycles count.

What is left at 512 tokens: time stamps in a chain of dependent launches under load say that the main loop
takes the tensor cores' cycles and no more (3584 x 3584: 25,086 of 25,088; 4608 x 3584: 32,084 of 32,256; 3584
x 18944: 133,200 of 132,608), and that 5,850 cycles of a launch were outside of it, 19 percent of the first
one. A block starts 610 after the one before it on its multiprocessor has ended, has its place 340 later, and
asked for B 2,900 after its start: what a launch executes first is not in the instruction cache, some 70
cycles for each 8 instructions in a row and 600 where they jump. `griddepcontrol.wait` returns 3,100 or more
after the last block's end, 950 before A's first tile is there; the epilogue takes 590, and TMA reads shared
memory for 660 more. So the first loads are now one run of instructions behind the block's barrier, without
divisions, each stage's by a lane of its own; B is asked for after 1,970, and a tile's place is known before
its first k-tile is waited for. Predicted were 450 cycles a launch, measured 800 to 1,000: 2.7 percent of o,
2.2 of q+k+v, nothing of gate+up (o 1.2 and q+k+v 1.5 percent less time in bursts, both 2 under load).

What was tried there and lost: a count of the blocks whose C is in memory, which the next launch waits for
instead of the grid's end (o 6 percent more cycles, q+k+v 3: blocks end 900 later, and the count is seen no
earlier); C from registers straight to memory, 8 bytes a lane (o 1 percent more); the first consumer one to
three k-tiles ahead of the second (up to 2 percent more); the first loads before the block's barrier (half of
the gain), or registers given up behind them (o 2 percent more than before: the consumers are late); an
epilogue of no tile while a block waits, for its instructions' sake (nothing); a thread for A and another for
B, and a word for each seat (0.3 to 1 percent more); six stages of 128 x 144 (nothing).

At 8192 tokens a tile of 256 x 224 spends 6,000 cycles outside of its main loop, as all blocks store at once;
of these blocks of rows apart hide 1,700. Without any loads (and with wrong results) 128 x 112, 256 x 192 and
128 x 256 took 86 us of 95 (3584 x 18944 at 512 tokens), 672 of 702 (37888 x 3584 at 2048), 1323 of 1397 (3584
x 18944 at 8192), where cuBLAS took 93, 716 and 1397. A wave that leaves multiprocessors idle costs less than
its cycles: 126 blocks instead of 132 take 8.3 percent more waves and 5.5 percent more time (37888 x 3584 at
2048 tokens). The clock follows what L2 is asked for (3584 x 18944 at 512 tokens): 26.1 million sectors at
1490 MHz, with promotion to 128 bytes 21.0 at 1500, cuBLAS's 17.2 at 1522.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from minfer.cuda.gemm_hopper.choice import TILES
from minfer.cuda.gemm_hopper.config import SPLIT_TILES, GemmHopperConfig
from minfer.cuda.gemm_hopper.consumer import make_consumer
from minfer.cuda.gemm_hopper.heads import Heads
from minfer.cuda.gemm_hopper.loads import make_loads
from minfer.cuda.gemm_hopper.skewed import make_skewed_consumer
from minfer.cuda.gemm_hopper.split import make_share
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.tile.hopper import ALIGNMENT


@cache
def make_gemm_hopper(config: GemmHopperConfig) -> Kernel:
    """The kernel of a config: (a, b, c, nt, od, depth, group[, seats][, parts, ready]), with epilogue "rope"
    (a, b, [bias,] table, q, k_cache, v_cache, nt, od, depth, group, position[, seats][, parts, ready]); seats
    with pdl, parts and ready (`split_workspace`) with split_k.

    a, b, c are tensor maps (`config.boxes`, 128-byte swizzle) of A [nt, depth] and B [od, depth], f16
    row-major, and C [nt, od] of `config.out`, od and depth multiples of 8; the sizes are int32; group is
    `config.group(nt, od)`. The grid is `config.grid`; with pdl it has as many blocks as the array `seats` has
    seats, and B must not be what the kernel before has written, or the launch none that may overlap. Every
    element of C is written; with epilogue "add" C
    += A B^T, each element rounded once. With "swiglu" B is [2 od, depth]: the gate's rows, then the up
    matrix's, and C = silu(gate) * up. With "rope" nothing is written as C: see
    `heads.store_heads`."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.tile.scheduler import tiles_of
    from minfer.cuda.tile.seats import MOST_SEATS, ORDER, seated, take_seat

    tile_n, out_m, tile_k = config.tile_n, config.out_m, config.tile_k
    barriers_start, initialise = config.barriers_start, config.ring.initialise
    producer, first_consumer = config.producer, int(config.producer)
    fewer = more = None
    if producer:
        fewest, most = config.warpgroups.registers
        fewer, more = ptx.setmaxnreg("dec", fewest), ptx.setmaxnreg("inc", most)
    high_word = ptx.wgmma_high_word()
    pdl, place_start = config.pdl, config.place_start
    split_k, share = config.split_k, make_share(config.split_k, config.split_lead)
    heads = config.heads
    rotated, biased = heads is not None, heads is not None and heads.bias
    address, loads = ptx.global_address, make_loads(config)
    load_first, produce = loads.load_first, loads.produce
    consume = make_skewed_consumer(config) if config.skew else make_consumer(config)
    least_k_tiles = 2 * config.skew

    def gemm_hopper(
        a, b, c, bias, table, q, k_cache, v_cache, nt, od, depth, group, position, seats, parts, ready
    ):
        start = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        base = types.uint32((start + (ALIGNMENT - 1)) & (0x100000000 - ALIGNMENT))
        barriers = types.uint32(base + barriers_start)
        maps = ptx.tensor_map_address(a), ptx.tensor_map_address(b)
        if rotated:
            queries, keys, values = address(q), address(k_cache), address(v_cache)
            target = address(bias), address(table), queries, keys, values, nt, position
        else:
            target = ptx.tensor_map_address(c)
        thread = cuda.threadIdx.x
        warp = ptx.uniform(thread >> 5)
        rows, columns = tiles_of(nt, tile_n), tiles_of(od, out_m)
        every = max(tiles_of(depth, tile_k), types.int32(least_k_tiles))
        place, step = types.int32(cuda.blockIdx.x), types.int32(cuda.gridDim.x)
        if thread == 0:
            ptx.prefetch_tensor_map(maps[0])
            ptx.prefetch_tensor_map(maps[1])
            if not rotated:
                ptx.prefetch_tensor_map(target)
            initialise(barriers)
        if pdl and thread == 32:
            ptx.st_shared_u32(base + place_start, take_seat(address(seats)))
        cuda.syncthreads()
        if pdl:
            place = types.int32(ptx.ld_shared_u32(base + place_start))
        tile, span = share(ptx.uniform(place), rows * columns, every)
        shape, half = (rows, columns, step, span, group, od), (address(parts), address(ready))
        warpgroup = types.int32(warp >> 2)
        if producer and warpgroup == 0:
            fewer()
        if pdl and thread == 32:
            seated(address(seats))
        if warp == 0:
            # What a launch waits for: its instructions come from L2, so they are few, in one run.
            load_first(maps, base, barriers, tile, shape, types.int32(thread))
            if producer and thread == 0:
                produce(maps, base, barriers, tile, shape, half)
        if not producer or warpgroup > 0:
            if producer:
                more()
            consumer, within = types.int32(warpgroup - first_consumer), types.int32(thread & 127)
            # Sizes have no sign, which the assembler does not know: it keeps these words in registers.
            high = types.uint32(high_word | (nt >> 31)), types.uint32(high_word | (od >> 31))
            consume(target, maps, base, barriers, tile, shape, consumer, within, high, half)

    return Kernel(
        name="gemm_hopper",
        config=config,
        function=gemm_hopper,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=(
            Argument("a", "tensor_map", "float16"),
            Argument("b", "tensor_map", "float16"),
            Argument(
                "c",
                "tensor_map",
                f"float{config.out[1:]}",
                stored=config.epilogue != "add",
                present=not rotated,
            ),
            Argument("bias", "in", "float32", align=8, present=biased),
            Argument("table", "in", "float32", align=16, present=rotated),
            Argument("q", "out", "float16", align=16, present=rotated),
            Argument("k_cache", "inout", "float16", align=16, present=rotated),
            Argument("v_cache", "inout", "float16", align=16, present=rotated),
            *(Argument(name, "scalar", "int32") for name in ("nt", "od", "depth", "group")),
            Argument("position", "scalar", "int32", present=rotated),
            Argument("seats", "inout", "uint32", cleared=ORDER, per_block=True, present=pdl),
            Argument("parts", "inout", "float32", align=16, present=split_k),
            Argument("ready", "inout", "uint32", cleared=MOST_SEATS, present=split_k),
        ),
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
        cooperative=split_k,
    )


def shipped() -> list[Kernel]:
    """Every tile that `choose` may pick as a dependent launch, also with the epilogues of a model's layers
    (q, k and v of Qwen2.5-7B and SmolLM2-135M); and the large ones, which long products take, as none."""
    plain = [GemmHopperConfig(m, stages, tile_n=n) for n, m, stages in TILES]
    sums = [
        GemmHopperConfig(m, stages, "f32", "add", n)
        for n, m, stages in TILES
        if m in (256, 224, 192, 112, 64)
    ]
    gates = [
        GemmHopperConfig(m, stages, "f16", "swiglu", n)
        for n, m, stages in (
            *((128, 256, 4), (128, 192, 4), (128, 144, 5)),
            *((192, 192, 4), (256, 192, 3), (256, 224, 3)),
        )
    ]
    rotated = [
        GemmHopperConfig(m, stages, "f16", "rope", n, Heads(28, 4, 128, bias=True))
        for n, m, stages in ((192, 192, 4), (128, 256, 4), (128, 64, 8))
    ]
    rotated.append(GemmHopperConfig(128, 6, "f16", "rope", 128, Heads(9, 3, 64, interleaved=True)))
    every = [replace(config, skew=config.best_skew) for config in (*plain, *sums, *gates, *rotated)]
    dependent = [replace(config, pdl=True) for config in every]
    for out, epilogue in (("f16", "store"), ("f32", "add")):
        dependent += [
            GemmHopperConfig(m, stages, out, epilogue, n, pdl=True, split_k=True, split_lead=lead)
            for n, m, stages, lead in SPLIT_TILES
        ]
    large = [config for config in every if config.tile_n * config.tile_m >= 128 * 224]
    return [make_gemm_hopper(config) for config in (*dependent, *large)]
