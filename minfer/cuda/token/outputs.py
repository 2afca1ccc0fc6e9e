"""What becomes of a block's dot products: they are added up, gated or added to the residual stream, and
written, by all the threads that multiply."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import silu_product
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.addresses import ACTIVATED_RECORDS, LOGITS, QKV, RESIDUAL, address_of
from minfer.cuda.token.choose import candidate, make_keep
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.exchange import Exchange
from minfer.cuda.token.schedule import NORM, PAIRS, TO_LOGITS, TO_QKV


def make_outputs(config: TokenConfig, exchange: Exchange) -> Callable:
    """Device function (shared, flags, place, first, count, groups, old, tag): outputs first ... first +
    count - 1 from the sums in shared memory, [count, rows of weights, groups]. `place` is where the product's
    outputs begin in the attention's row; `old` what this thread's first output is added to."""
    threads, dim = config.threads, config.hidden
    addresses_at, norm_scale_at, sums_at = config.addresses_at, config.norm_scale_at, config.sums_at
    store_sum, store_run = exchange.store_sum, exchange.store_run
    keep_best = make_keep(config)

    def make_sum(most: int) -> Callable:
        """Device function: the sum of `groups` numbers, `most` at most. All are loaded at once."""

        @device_function
        @unrolled
        def add_up(sums, groups):
            total = float32(0)
            for g in unroll(most):
                if g < groups:
                    total += ptx.ld_shared_f32(sums + uint32(g * 4))
            return total

        return add_up

    add_up, add_gated = (make_sum(config.row_groups(n)) for n in (config.widest, dim))

    @device_function
    def gated(sums, groups, scale):
        gate = scale * add_gated(sums, groups)
        return silu_product(gate, scale * add_gated(sums + uint32(groups * 4), groups))

    @device_function
    def write(shared, flags, place, first, count, groups, old, tag):
        addresses = shared + uint32(addresses_at)
        sums = shared + uint32(sums_at)
        thread = int32(cuda.threadIdx.x)
        scale = float32(1)
        if flags & NORM:
            scale = ptx.ld_shared_f32(shared + uint32(norm_scale_at))
        if flags & PAIRS:
            records = address_of(addresses, ACTIVATED_RECORDS)
            lane = int32(ptx.lane_id())
            each = uint32(groups * 8)
            # Whole warps go round together: the store shuffles.
            base = int32((thread - lane) * 4)
            while base < count:
                index = int32(base + lane * 4)
                at = sums + uint32(min(index, int32(count - 4))) * each
                v0 = gated(at, groups, scale)
                v1 = gated(at + each, groups, scale)
                v2 = gated(at + each * uint32(2), groups, scale)
                v3 = gated(at + each * uint32(3), groups, scale)
                store_run(records, first + index, first + count, v0, v1, v2, v3, tag)
                base = int32(base + threads * 4)
        else:
            of = address_of(addresses, RESIDUAL)
            if flags & TO_QKV:
                of = address_of(addresses, QKV)
            if flags & TO_LOGITS:
                of = address_of(addresses, LOGITS)
            best = uint64(0)
            i = thread
            while i < count:
                total = scale * add_up(sums + uint32(i * groups * 4), groups)
                index = int32(int32(place) + first + i)
                if flags & TO_LOGITS:
                    ptx.st_global_f32(of + uint64(index) * uint64(4), total)
                    best = max(best, candidate(total, index))
                else:
                    store_sum(of, index, old + total, tag)
                i = int32(i + threads)
            if flags & TO_LOGITS:
                keep_best(shared, best)

    return write
