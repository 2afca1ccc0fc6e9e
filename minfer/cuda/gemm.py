"""C[nt, od] = A[nt, id] B[od, id]^T on mma.sync: f16 operands, f32 accumulation.

The family of the f16 prefill campaign. A is the activations (nt tokens), B a weight matrix as it is stored
(od rows). One block computes a tile of `tile_n` tokens x `tile_m` outputs, k-step by k-step, from a cp.async
ring of `stages` stages. The grid is od-tile-major: blockIdx.x counts token tiles, blockIdx.y output tiles, so
that neighbouring blocks share a panel of B in L2 and the weights stream from memory about once.

Every variant is a config: tile sizes, k-step, warps, padded or swizzled rows; A as f16, or as f32 through a
mirror in shared memory; B as f16, or from quantized blocks that are dequantized on their way into the tile.
Shapes at run time: nt, od of any size, id a multiple of 8 (and of a block).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from minfer.cuda.gemm_config import (
    A_SOURCES,
    B_SOURCES,
    BLOCK_SOURCES,
    LAYOUTS,
    OUTPUTS,
    GemmConfig,
    seed_config,
)
from minfer.cuda.kernel import Argument, Kernel

__all__ = [
    "A_SOURCES",
    "BLOCK_SOURCES",
    "B_SOURCES",
    "LAYOUTS",
    "OUTPUTS",
    "GemmConfig",
    "make_gemm",
    "seed_config",
    "shipped",
]


@cache
def make_gemm(config: GemmConfig) -> Kernel:
    """The kernel of a config: (a, b, c, nt, od, depth).

    a [nt, depth] (f16, or f32 with a_source "f32_mirror"), b [od, depth] (f16, or the bytes of its blocks), c
    [nt, od] of type `config.out`, all row-major and contiguous, a and b aligned to 16 bytes (2-byte aligned
    blocks to 2); nt, od, depth (the model's
    id) int32, as `config.check` asks. Every element of c is written. With a pitch, c's rows lie so many
    elements apart, and what is between them is left alone. Errors: f32 sums; f16 results rounded
    once. Follows the GEMM of the f16 prefill session, with swizzled rows and larger tiles beside its own."""
    import numpy as np
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.instruction import device_function, unroll, unrolled
    from minfer.cuda.tile.epilogue import store_strided
    from minfer.cuda.tile.fragments import fill_fragment, load_matrix_sync, mma_sync
    from minfer.cuda.tile.maps import Fragment

    tile_n, tile_m, tile_k, stages = config.tile_n, config.tile_m, config.tile_k, config.stages
    warps_m, threads = config.warps_m, config.threads
    warp_n_rows, warp_m_rows = config.warp_tile
    n_fragments, m_fragments = warp_n_rows // 16, warp_m_rows // 16
    accumulators, a_words, k_fragments = config.accumulators, 4 * n_fragments, tile_k // 16
    a_source, b_source = config.sources
    a_tile, b_tile = config.tiles
    start_a, copy_a, settle_a = a_source.start, a_source.copy, a_source.settle
    start_b = b_source.start
    b_blocks = config.b_source != "f16"
    if b_blocks:
        fetch_b, deposit_b, b_words = b_source.fetch, b_source.deposit, b_source.registers
    else:
        copy_b, b_step = b_source.copy, np.uint64(b_source.step_bytes)
    load_a = load_matrix_sync(Fragment("matrix_a", "f16", "row_major"), a_tile)
    load_b = load_matrix_sync(Fragment("matrix_b", "f16", "col_major"), b_tile)
    multiply, fill = mma_sync("f16"), fill_fragment(n_fragments * m_fragments)
    pitch = config.pitch
    store = store_strided(n_fragments, m_fragments, config.out)
    commit, wait = ptx.cp_async_commit, ptx.cp_async_wait_group(stages - 2)

    stage_bytes, b_stage = config.stage_bytes, a_source.stage_bytes
    ring_bytes = stages * stage_bytes
    a_step = np.uint64(a_source.step_bytes)
    # Tiles that do not come from memory as they are: behind the ring, A's two, then B's.
    a_settled, a_tile_bytes, b_tile_bytes = a_source.settled_tiles, a_tile.size_bytes, b_tile.size_bytes
    b_tiles = ring_bytes + a_settled * a_tile_bytes

    # In functions of their own the compiler's front end sees these once, not once a fragment.
    @device_function
    @unrolled
    def multiply_column(sums, a_registers, b_registers, b_at, column, byte, j):
        load_b(b_registers, 0, b_at, column + 16 * j, byte)
        for i in unroll(n_fragments):
            multiply(sums, 8 * (i * m_fragments + j), a_registers, 4 * i, b_registers, 0)

    @device_function
    @unrolled
    def multiply_k16(sums, a_registers, b_registers, a_at, b_at, row, column, k):
        for i in unroll(n_fragments):
            load_a(a_registers, 4 * i, a_at, row + 16 * i, 32 * k)
        for j in unroll(m_fragments):
            multiply_column(sums, a_registers, b_registers, b_at, column, 32 * k, j)

    @device_function
    def advance(offset):
        # A select and not a branch: the compiler would write the loop once for every stage.
        following = types.uint32(offset + stage_bytes)
        return ptx.select_u32(following != ring_bytes, following, 0)

    @unrolled
    def gemm_f16(a, b, c, nt, od, depth):
        ring = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        a_matrix, b_matrix = ptx.global_address(a), ptx.global_address(b)
        thread = cuda.threadIdx.x
        warp = thread >> 5
        warp_n, warp_m = (warp // warps_m) * warp_n_rows, (warp % warps_m) * warp_m_rows
        first_n, first_m = cuda.blockIdx.x * tile_n, cuda.blockIdx.y * tile_m
        steps = types.int32((depth + tile_k - 1) // tile_k)
        sums = cuda.local.array(accumulators, dtype=types.float32)
        a_registers = cuda.local.array(a_words, dtype=types.uint32)
        b_registers = cuda.local.array(4, dtype=types.uint32)
        fill(sums, types.float32(0))

        a_pointer, a_rows, a_ks = start_a(a_matrix, depth, first_n, nt, depth, thread)
        b_pointer, b_rows, b_ks = start_b(b_matrix, depth, first_m, od, depth, thread)
        for step in unroll(stages - 1):
            if step < steps:
                copy_a(ring + step * stage_bytes, a_pointer, depth, a_rows, a_ks, thread)
                a_pointer, a_ks = types.uint64(a_pointer + a_step), types.int32(a_ks - tile_k)
                if not b_blocks:
                    copy_b(ring + step * stage_bytes + b_stage, b_pointer, depth, b_rows, b_ks, thread)
                    b_pointer, b_ks = types.uint64(b_pointer + b_step), types.int32(b_ks - tile_k)
            commit()
        if b_blocks:
            words = cuda.local.array(b_words, dtype=types.uint32)
            fetch_b(words, b_pointer, depth, b_rows, 0, depth, thread)
            deposit_b(words, ring + b_tiles, 0, depth, thread)

        read, fill_next = types.uint32(0), types.uint32((stages - 1) * stage_bytes)
        for step in range(steps):
            wait()
            a_at, b_at = types.uint32(ring + read), types.uint32(ring + read + b_stage)
            if a_settled:
                a_at = types.uint32(ring + ring_bytes + (step & 1) * a_tile_bytes)
                settle_a(ring + read, a_at, thread)
            if b_blocks:
                b_at = types.uint32(ring + b_tiles + (step & 1) * b_tile_bytes)
            cuda.syncthreads()
            if step + stages - 1 < steps:
                copy_a(ring + fill_next, a_pointer, depth, a_rows, a_ks, thread)
                a_pointer, a_ks = types.uint64(a_pointer + a_step), types.int32(a_ks - tile_k)
                if not b_blocks:
                    copy_b(ring + fill_next + b_stage, b_pointer, depth, b_rows, b_ks, thread)
                    b_pointer, b_ks = types.uint64(b_pointer + b_step), types.int32(b_ks - tile_k)
            commit()
            if b_blocks:
                # Past the last k-tile the last one is loaded again: harmless, and no branch.
                fetch_b(words, b_pointer, depth, b_rows, (step + 1) * tile_k, depth, thread)
            for k in unroll(k_fragments):
                multiply_k16(sums, a_registers, b_registers, a_at, b_at, warp_n, warp_m, k)
            if b_blocks:
                following = ring + b_tiles + ((step + 1) & 1) * b_tile_bytes
                deposit_b(words, following, (step + 1) * tile_k, depth, thread)
            read, fill_next = advance(read), advance(fill_next)

        apart = od
        if pitch is not None:
            apart = types.int32(pitch)
        store(sums, ptx.global_address(c), first_n + warp_n, first_m + warp_m, nt, od, apart)

    arguments = (
        Argument("a", "in", a_source.element, align=16),
        Argument("b", "in", b_source.element, align=b_source.alignment),
        Argument("c", "out" if pitch is None else "inout", f"float{config.out[1:]}"),
        Argument("nt", "scalar", "int32"),
        Argument("od", "scalar", "int32"),
        Argument("depth", "scalar", "int32"),
    )
    return Kernel(
        name="gemm_blocks" if b_blocks else "gemm_f16",
        config=config,
        function=gemm_f16,
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_blocks=config.min_blocks,
        # Where both operands pass through registers, ptxas puts a few of them aside.
        allowed_spill_bytes=32 if b_blocks and a_settled else 0,
    )


KERNELS = ("gemm_blocks", "gemm_f16")


def shipped() -> list[Kernel]:
    """The configs of the campaign, the larger tiles past it, and B straight from blocks."""
    seed = seed_config({})
    campaign = [
        GemmConfig(),
        seed,
        seed_config({"MINFER_GEMM_TM": "256"}),
        seed_config({"MINFER_GEMM_K64": "1"}),
        seed_config({"MINFER_GEMM_AF32": "1"}),
        replace(seed, layout="plain"),
        replace(seed, layout="swizzled"),
    ]
    large = [
        GemmConfig(128, 128, 32, 4, layout="swizzled"),
        GemmConfig(128, 128, 64, 3, layout="swizzled"),
        GemmConfig(128, 256, 32, 4, layout="swizzled"),
        GemmConfig(128, 256, 64, 3, layout="swizzled"),
    ]
    blocks = [GemmConfig(128, 128, 64, 3, layout="swizzled", b_source=name) for name in B_SOURCES[1:]]
    # For few tokens; and the forms that a model's products take without f16 copies of the weights.
    common = ("Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
    blocks += [GemmConfig(64, 64, 64, 4, layout="swizzled", b_source=name) for name in common]
    blocks += [replace(config, out="f16") for config in blocks if config.b_source == "Q4_K"]
    blocks += [replace(blocks[B_SOURCES.index(name) - 1], pitch=4608) for name in ("Q4_K", "Q6_K")]
    halves = [replace(config, out="f16") for config in large]
    return [make_gemm(config) for config in (*campaign, *large, *halves, *blocks)]
