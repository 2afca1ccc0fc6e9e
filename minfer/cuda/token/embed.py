"""What a step begins with: the embedded token.

It comes from a kernel before, and blocks hand their parts of it on as they do everything else; or every block
dequantizes the token's row of the embedding for its first norm (`TokenConfig.embeds`): no launch, and no
exchange. Then nobody looks for what blocks store of it: each stores the sums that its own threads will add to
first, those of the output projection. Its tag is two behind the last one of the launch before: one behind it,
the first output projection's would end in the same two bits as what lies there from that launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS, four_weights
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.exchange import Exchange, sum_rounds
from minfer.cuda.token.schedule import ATTENDED
from minfer.cuda.token.tiles import make_block_rows

NAN_BITS = 0x7FC00000


class Embed(NamedTuple):
    """Device functions.

    Attributes:
        find: (x, token, rows): the address of the embedded token, or of its row; 0 for an id that is none.
        put: (residual, found, block, tag): this block's part to the residual stream.
        load: (local f32 array, residual, tag, found, first): this thread's fours of the residual stream,
            the `first` time of the embedded token.
        tags_apart: from the last tag of the launch before to that of the embedded token.
    """

    find: Callable
    put: Callable
    load: Callable
    tags_apart: int


def make_embed(config: TokenConfig, exchange: Exchange) -> Embed:
    """The functions for the config."""
    return _dequantized(config, exchange) if config.embeds else _given(config, exchange)


def _given(config: TokenConfig, exchange: Exchange) -> Embed:
    dim, block_rows = config.hidden, make_block_rows(config)
    store_sum, load_sums = exchange.store_sum, exchange.load_sums

    @device_function
    def find(x, token, rows):
        return x

    @device_function
    def put(residual, found, block, tag):
        first, last = block_rows(int32(0), int32(dim), block)
        mine = first + int32(cuda.threadIdx.x)
        if mine < last:
            store_sum(residual, mine, ptx.ld_global_f32(found + uint64(mine) * uint64(4)), tag)

    @device_function
    @unrolled
    def load(values, residual, tag, found, first):
        load_sums(values, residual, tag)

    return Embed(find, put, load, 1)


def _dequantized(config: TokenConfig, exchange: Exchange) -> Embed:
    dim, threads, fours = config.hidden, config.threads, config.hidden // 4
    rounds, row_bytes = sum_rounds(dim, threads), BLOCKS[config.table].row_bytes(dim)
    weights, block_rows = four_weights(config.table), make_block_rows(config)
    store_sum, load_sums = exchange.store_sum, exchange.load_sums

    @device_function
    def find(x, token, rows):
        row = uint64(0)
        if token < uint32(rows):
            row = x + uint64(token) * uint64(row_bytes)
        return row

    @device_function
    def four_of(row, index):
        v0 = ptx.bitcast_f32_u32(uint32(NAN_BITS))
        v1 = v0
        v2 = v0
        v3 = v0
        if row != uint64(0):
            v0, v1, v2, v3 = weights(row, index)
        return v0, v1, v2, v3

    @device_function
    def put(residual, found, block, tag):
        first, last = block_rows(int32(ATTENDED), int32(dim), block)
        mine = first + int32(cuda.threadIdx.x)
        if mine < last:
            v0, v1, v2, v3 = four_of(found, int32(mine & ~3))
            if mine & 1:
                v0 = v1
                v2 = v3
            if mine & 2:
                v0 = v2
            store_sum(residual, mine, v0, tag)

    @device_function
    @unrolled
    def load(values, residual, tag, found, first):
        if first:
            for i in unroll(rounds):
                four = int32(cuda.threadIdx.x) + int32(i * threads)
                if four < fours:
                    v0, v1, v2, v3 = four_of(found, int32(four * 4))
                    values[i * 4] = v0
                    values[i * 4 + 1] = v1
                    values[i * 4 + 2] = v2
                    values[i * 4 + 3] = v3
        else:
            load_sums(values, residual, tag)

    return Embed(find, put, load, 2)
