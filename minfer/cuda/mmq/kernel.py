"""The MMQ kernel: int8 tensor cores from quantized blocks.

After mmq_raw_nt_kernel, its wide clone and R1 of the MMQ session; the padded, magic and tensor options go
past it. One barrier a k-tile: what was copied has landed, what was decoded is visible, and the buffers that
are filled next have been read by all.
"""

from __future__ import annotations

from functools import cache

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.mmq.activations import Activations
from minfer.cuda.mmq.config import CHUNK_BYTES, MmqConfig
from minfer.cuda.mmq.folded import FoldedWeights
from minfer.cuda.mmq.ladder import shipped_configs
from minfer.cuda.mmq.multiply import Multiply
from minfer.cuda.mmq.raw import RawWeights
from minfer.cuda.mmq.scales import Scales
from minfer.cuda.mmq.schedule import Parts, segment
from minfer.cuda.mmq.words import WordWeights
from minfer.cuda.tile.epilogue import store_strided

_OUT_DTYPES = {"f32": "float32", "f16": "float16", "sums": "int32"}


@cache
def mmq(config: MmqConfig) -> Kernel:
    """C = X W^T from blocks: (weights, activations, out, nt, od, id; strided also stride).

    weights uint8 [od, row bytes], GGML blocks, 16-byte aligned; activations uint8 [nt, id / 32, 40] (pad40:
    f16 d at byte 0, 32 int8 at byte 4, their int32 sum at byte 36, bytes 2 and 3 zero), exactly so large; out
    f32 or f16 [nt, od], every element written; nt, od, id int32, as `config.check` asks. Strided: out [nt,
    od] are columns of a matrix whose rows are `stride` elements (int32) apart; the others stay. Integer sums
    are exact; chunks add up in f32, in their order: all configs of a weight type give the same bits, but for
    the minima of minimum="tensor". out="sums": out int32 of `config.sums_shape`, the integer sums."""
    tokens_tile, rows_tile, kd, stages = config.tokens_tile, config.rows_tile, config.kd, config.stages
    warp_tokens, warp_rows = config.warp_tile
    warps_rows = config.warps_rows
    accumulators = config.accumulators
    raw, words_source, folded = (config.variant == name for name in ("raw", "r1", "folded"))
    stream = config.stream
    sums_out = config.out == "sums"
    minimum_tensor = config.has_minimum and config.minimum == "tensor"
    stage_bytes, activation_bytes = config.stage_bytes, config.activation_bytes
    ring_bytes, scale_bytes, word_bytes = stages * stage_bytes, config.scale_bytes, config.word_bytes
    words_at = ring_bytes + 2 * scale_bytes
    second_scale, second_pitch = config.second_scale, config.second_pitch
    block_weights, block_bytes = config.block_weights, config.block_bytes
    activations = Activations(config)
    copy_activations, quarter_of = activations.copy, activations.quarter
    if raw:
        weights_source, scales_source = RawWeights(config), Scales(config)
        start_weights, copy_weights = weights_source.start, weights_source.copy
        start_scales, held = scales_source.start, scales_source.registers
        fetch, deposit = scales_source.fetch, scales_source.deposit
    elif folded:
        weights_source, held = FoldedWeights(config), 1
        expand = weights_source.expand
    else:
        weights_source = WordWeights(config)
        start_weights, fetch, deposit = weights_source.start, weights_source.fetch, weights_source.deposit
        locate, units, per_step = weights_source.locate, weights_source.units, weights_source.per_step
        unit_registers = weights_source.registers
        held = per_step * unit_registers
    own_weights = weights_source.own
    multiply = Multiply(config, activations, weights_source)
    multiply_chunk, multiply_minima = multiply.chunk, multiply.minima
    m_fragments, pairs = multiply.fragments
    a_values, d_values = 4 * m_fragments, 6 * m_fragments
    if stream:
        leave, collect = Parts(config).leave, Parts(config).collect
    store = store_strided(m_fragments, pairs, "f16" if config.out == "f16" else "f32")
    commit, wait = ptx.cp_async_commit, ptx.cp_async_wait_group(stages - 2)

    token_bytes, chunk_step = config.token_bytes, activations.chunk_step
    # Uniform registers take what follows from the warp; the plain layouts' loops hold more registers for it.
    uniform_warp = config.layout == "padded"
    written_out, x_step = config.unroll, activations.step_bytes

    @device_function
    def advance(offset):
        # A select and not a branch: the compiler would write the loop once for every stage.
        following = uint32(offset + stage_bytes)
        return ptx.select_u32(following != ring_bytes, following, 0)

    @device_function
    @unrolled
    def compute(
        acc, w_matrix, x_matrix, target, nt, od, depth, first_token, first_row, k_begin, k_end, thread
    ):  # fmt: skip
        """The block's accumulators over k-tiles k_begin ... k_end - 1 of a tile."""
        ring = ptx.shared_address(cuda.shared.array(0, dtype=uint8))
        lane, warp = uint32(thread & 31), uint32(thread >> 5)
        if uniform_warp:
            warp = uint32(ptx.uniform(int32(warp)))
        own_token, own_row = int32(warp // warps_rows * warp_tokens), int32(warp % warps_rows * warp_rows)
        chunks = int32(depth >> 5)
        row_bytes = int32(depth // block_weights * block_bytes)
        a = cuda.local.array(a_values, uint32)
        b = cuda.local.array(8 if folded else 4, uint32)
        d = cuda.local.array(d_values, float32)
        words = cuda.local.array(held, uint32)
        for i in unroll(accumulators):
            acc[i] = float32(0)

        x_source = uint64(x_matrix + uint64(first_token) * uint64(chunks * CHUNK_BYTES))
        if stream:
            x_source += uint64(uint32(k_begin) * uint32(x_step))
        tokens_left = int32(nt - first_token)
        end = uint64(w_matrix + uint64(od) * uint64(row_bytes))
        if raw:
            w_source = start_weights(w_matrix, row_bytes, first_row, od, thread)
            s_source = start_scales(w_matrix, row_bytes, first_row, od, thread)
        elif words_source:
            w_source = start_weights(row_bytes, first_row, thread)
            rows_left = int32(od - first_row - int32(thread // (2 * kd)))
        for n in unroll(stages - 1):
            k_tile = int32(k_begin + n)
            if k_tile < k_end:
                stage = ring + uint32(n * stage_bytes)
                copy_activations(stage, x_source, chunks, tokens_left, int32(chunks - k_tile * kd), thread)
                if raw:
                    copy_weights(stage + uint32(activation_bytes), w_source, end, k_tile, thread)
            x_source += uint64(x_step)
            commit()
        if raw:
            fetch(words, s_source, chunks, k_begin, thread)
            deposit(words, ring + uint32(ring_bytes), chunks, k_begin, thread)
        elif folded:
            expand(
                w_matrix, row_bytes, first_row, od, k_begin, ring + uint32(words_at),
                ring + uint32(ring_bytes), thread,
            )  # fmt: skip
        else:
            source, at = locate(w_source, chunks, k_begin, thread)
            for unit in range(units):
                fetch(words, 0, w_matrix, source, at, row_bytes, rows_left, unit)
                deposit(words, 0, ring + uint32(words_at), ring + uint32(ring_bytes), at, unit, thread)

        # Warps expand at different chunks: while one does, others multiply.
        own_turn = int32(warp & (kd - 1))
        # What a lane reads, as offsets in a stage and in a buffer of scales.
        token_offset = uint32((own_token + (lane >> 2)) * token_bytes + (lane & 3) * 4)
        tile_offset = own_weights(own_row, lane)
        scale_offset = uint32((own_row + (lane & 3) * 2) * 4)
        read, fill = uint32(0), uint32((stages - 1) * stage_bytes)
        for k in range(k_begin, k_end):
            k_tile = int32(k)
            wait()
            cuda.syncthreads()
            ahead = int32(k_tile + (stages - 1))
            if ahead < k_end:
                copy_activations(
                    ring + fill, x_source, chunks, tokens_left, int32(chunks - ahead * kd), thread
                )
                if raw:
                    copy_weights(ring + fill + uint32(activation_bytes), w_source, end, ahead, thread)
            x_source += uint64(x_step)
            commit()
            stage, odd = uint32(ring + read), uint32((k_tile - k_begin) & 1)
            scales = uint32(ring + ring_bytes + odd * scale_bytes)
            next_scales = uint32(ring + ring_bytes + (odd ^ 1) * scale_bytes)
            tile = uint32(stage + activation_bytes)
            next_tile = tile
            if not raw:
                tile = uint32(ring + words_at + odd * word_bytes)
                next_tile = uint32(ring + words_at + (odd ^ 1) * word_bytes)
            tile = uint32(tile + tile_offset)
            tokens = uint32(stage + token_offset)
            # Past the last k-tile the last one is decoded again: harmless, and no branch.
            following = int32(k_tile + 1)
            if raw and not minimum_tensor:
                fetch(words, s_source, chunks, following, thread)
            if folded:
                following = min(following, int32(k_end - 1))
            elif not raw:
                source, at = locate(w_source, chunks, following, thread)
            for group in range(kd // written_out):
                for n in unroll(written_out):
                    i = int32(written_out * group + n)
                    if folded:
                        if i == own_turn:
                            expand(
                                w_matrix, row_bytes, first_row, od, following, next_tile, next_scales, thread
                            )  # fmt: skip
                    elif not raw:
                        for u in unroll(per_step):
                            unit = int32(i * per_step + u)
                            if unit < units:
                                fetch(
                                    words,
                                    u * unit_registers,
                                    w_matrix,
                                    source,
                                    at,
                                    row_bytes,
                                    rows_left,
                                    unit,
                                )
                    multiply_chunk(
                        acc, a, b, d, tokens, tile, scales + scale_offset, row_bytes, first_token + own_token,
                        first_row + own_row, lane, k_tile, i, chunks, target, nt, od,
                    )  # fmt: skip
                    if words_source:
                        for u in unroll(per_step):
                            unit = int32(i * per_step + u)
                            if unit < units:
                                deposit(words, u * unit_registers, next_tile, next_scales, at, unit, thread)
            if raw and minimum_tensor:
                # The minima's products hide the loads; before the chunks they would cost registers there.
                fetch(words, s_source, chunks, following, thread)
            if minimum_tensor:
                for quarter in unroll(kd // 4):
                    chunk = uint32(4 * quarter + (lane & 3))
                    multiply_minima(
                        acc,
                        a,
                        uint32(tokens - quarter_of(tokens, lane) + chunk * chunk_step),
                        uint32(scales + second_scale + chunk * second_pitch + (own_row + (lane >> 2)) * 8),
                    )
            if raw:
                deposit(words, next_scales, chunks, following, thread)
            read, fill = advance(read), advance(fill)

    @device_function
    def place(tile, nt):
        """First token and row of a tile: token tiles fastest."""
        token_tiles = uint32((nt + (tokens_tile - 1)) // tokens_tile)
        row_tile = ptx.udiv_u32(uint32(tile), token_tiles)
        return int32((tile - row_tile * token_tiles) * tokens_tile), int32(row_tile * rows_tile)

    @device_function
    def store_tile(acc, target, first_token, first_row, nt, od, stride, thread):
        warp = int32(thread >> 5)
        token, row = warp // warps_rows * warp_tokens, warp % warps_rows * warp_rows
        store(acc, target, int32(first_token + token), int32(first_row + row), nt, od, stride)

    @device_function
    def multiply_tile(w_matrix, x_matrix, target, nt, od, depth, stride):
        """One tile a block."""
        acc, thread = cuda.local.array(accumulators, float32), uint32(cuda.threadIdx.x)
        first_token, first_row = int32(cuda.blockIdx.x * tokens_tile), int32(cuda.blockIdx.y * rows_tile)
        k_tiles = int32(((depth >> 5) + (kd - 1)) // kd)
        compute(
            acc, w_matrix, x_matrix, target, nt, od, depth, first_token, first_row, int32(0), k_tiles, thread
        )
        if not sums_out:
            store_tile(acc, target, first_token, first_row, nt, od, stride, thread)

    @device_function
    def multiply_stream(w_matrix, x_matrix, target, parts, ready, nt, od, depth, stride):
        """A block's share of all tiles."""
        acc, thread = cuda.local.array(accumulators, float32), uint32(cuda.threadIdx.x)
        k_tiles = int32(((depth >> 5) + (kd - 1)) // kd)
        tiles = int32((nt + (tokens_tile - 1)) // tokens_tile) * int32((od + (rows_tile - 1)) // rows_tile)
        block, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        waves = int32(ptx.udiv_u32(uint32(tiles), uint32(blocks)))
        for index in range(waves + 2):
            tile, k_begin, k_end = segment(int32(index), block, blocks, waves, tiles, k_tiles)
            if k_begin < k_end:
                first_token, first_row = place(tile, nt)
                compute(
                    acc, w_matrix, x_matrix, target, nt, od, depth, first_token, first_row, k_begin, k_end,
                    thread,
                )  # fmt: skip
                if k_begin > 0:
                    leave(acc, parts, ready, thread)
                else:
                    if k_end < k_tiles:
                        collect(acc, parts, ready, waves, tile, tiles, k_tiles, thread)
                    store_tile(acc, target, first_token, first_row, nt, od, stride, thread)
                # All have read the buffers that the next segment fills.
                cuda.syncthreads()

    address = ptx.global_address

    def mmq_whole(weights, activations, out, nt, od, depth):
        multiply_tile(address(weights), address(activations), address(out), nt, od, depth, od)

    def mmq_columns(weights, activations, out, nt, od, depth, stride):
        multiply_tile(address(weights), address(activations), address(out), nt, od, depth, stride)

    def mmq_stream(weights, activations, out, parts, ready, nt, od, depth, stride):
        multiply_stream(
            address(weights), address(activations), address(out), address(parts), address(ready), nt, od,
            depth, stride,
        )  # fmt: skip

    workspace = (Argument("parts", "inout", "float32"), Argument("ready", "inout", "uint32"))
    arguments = (
        Argument("weights", "in", "uint8"),
        Argument("activations", "in", "uint8"),
        Argument("out", "inout" if config.strided else "out", _OUT_DTYPES[config.out]),
        *(workspace if stream else ()),
        Argument("nt", "scalar", "int32"),
        Argument("od", "scalar", "int32"),
        Argument("id", "scalar", "int32"),
        *((Argument("stride", "scalar", "int32"),) if config.strided or stream else ()),
    )
    return Kernel(
        name="mmq_sums" if sums_out else "mmq",
        config=config,
        function=mmq_stream if stream else mmq_columns if config.strided else mmq_whole,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_blocks=config.min_blocks,
        # A few addresses, outside the loop over chunks; how many depends on assembler and architecture.
        allowed_spill_bytes=96,
    )


def shipped() -> list[Kernel]:
    """Every weight type in the seed's three variants, both depths, and the fast ones."""
    return [mmq(config) for config in shipped_configs()]
