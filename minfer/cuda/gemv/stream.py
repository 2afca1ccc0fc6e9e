"""Decode GEMV on sm_90, with what surrounds the product in the same kernel.

A decode step is a chain of kernels that each read some megabytes of weights as fast as memory gives them.
What it loses is lost at the seams, so that

- weights do not wait for the kernel before: each warp fills a ring of its own in shared memory by bulk copies
  first of all, and only then waits (`minfer.cuda.dependent`). A block an SM, of at most half its shared
  memory: the next kernel's block has room beside it and fills its ring while this one still runs;
- chained kernels do not wait for the one before to end and be flushed, but for all its blocks to have counted
  in memory (they are all running by then: a dependent kernel starts when every block has said so);
- the kernels between the products are gone: every block norms and quantizes the activations for itself
  (some microseconds of one SM's time in a kernel of its own, as much in all SMs at once), and the activation
  function or the residual addition is the epilogue;
- a full ring is multiplied faster than memory could have filled it: a lane's activations stay in registers
  (`minfer.cuda.gemv.lanes`), so that a block costs shared memory its own bytes only.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import silu_product
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.gemv.fine import FINE_RECORD_BYTES, FINE_RUN, fine_record_bytes, store_fine
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.gemv.staging import stage_activations
from minfer.cuda.gemv.stream_config import (
    LOADS,
    RECORD_OUTPUTS,
    TEAM_OUTPUTS,
    GemvStreamConfig,
    GemvTwoConfig,
)
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.signature import signature_of

RECORDS_BYTES = 4 * FINE_RECORD_BYTES  # a block's activations


def chain(chained: bool) -> tuple[Argument, ...]:
    """What a chained kernel takes last: the counter of the kernel before, its number of blocks, and its own
    counter."""
    return (
        Argument("before", "in", "uint32", present=chained),
        Argument("expected", "scalar", "uint32", present=chained),
        Argument("after", "inout", "uint32", present=chained),
    )


def _norm(config: GemvStreamConfig) -> tuple[Argument, ...]:
    normed = config.source == "norm"
    return (
        Argument("gains", "in", "float32", present=normed),
        Argument("eps", "scalar", "float32", present=normed),
    )


def _product(config: GemvStreamConfig) -> Callable:
    """Device function (block, blocks, weights, x, gains, eps, addend, y, od, before, expected, after): this
    block's outputs of a product that `blocks` blocks share; pointers as global addresses."""
    dot = LANE_DOTS[config.format]
    load, multiply = dot.load, dot.dot
    lanes, across, steps = dot.lanes, config.across, config.steps
    rows, outputs, team, warps, slots = config.rows, config.outputs, config.team, config.warps, config.slots
    teams = warps // team
    units, unit, row_bytes = config.units, config.unit_bytes, config.units * config.unit_bytes
    aligned = unit % 16 == 0
    piece, slot_bytes = config.piece_bytes, config.slot_bytes
    copies, copy_rows = config.copies, config.copy_rows
    halving, levels = rows in (1, 2, 4, 8), rows.bit_length() - 1
    spread = 32 // rows if halving else 1  # lanes from a row's sum to the next one's
    scratch_at, records_at, chained = warps * slots * 8, config.head_bytes, config.chained
    partials_at = records_at + fine_record_bytes(config.dim)
    outputs_at, ring_at = partials_at + config.partial_bytes, config.ring_offset
    pairs, added, held = config.pairs, config.addend, 4 * LOADS
    prepare, stage = stage_activations(config)
    to_records, ahead, late = config.records, config.ahead, config.late
    grain = FINE_RUN if to_records else 1
    word_count, float_count = steps * dot.words, steps * dot.floats

    @device_function
    def address_of(matrix, begin, c, od, start):
        """Where copy c of the turn of outputs begin ... starts."""
        row = begin
        if pairs and c >= copies // 2:
            row += od
        if team > 1:
            row += c % outputs
        return matrix + uint64(row) * uint64(row_bytes) + uint64(start)

    @device_function
    def span_of(address, length):
        """(first line, bytes) of a copy."""
        size = uint32(copy_rows * length)
        if not aligned:
            line = address & uint64(0xFFFFFFFFFFFFFFF0)
            size = (uint32(address - line) + size + uint32(15)) & uint32(0xFFFFFFF0)
            address = line
        return address, size

    @device_function
    @unrolled
    def fetch(matrix, slot, barrier, begin, od, start, length):
        """Start the copies of a turn; one lane does."""
        if int32(ptx.lane_id()) == 0:
            for c in unroll(copies):
                address, size = span_of(address_of(matrix, begin, c, od, start), length)
                ptx.mbarrier_arrive_expect_tx(barrier, size)
                ptx.bulk_load(slot + uint32(c * piece), address, size, barrier)

    @device_function
    @unrolled
    def warm(matrix, begin, od, start, length):
        """Bring a later turn's rows into L2."""
        if int32(ptx.lane_id()) == 0:
            for c in unroll(copies):
                address, size = span_of(address_of(matrix, begin, c, od, start), length)
                ptx.bulk_prefetch_l2(address, size)

    @device_function
    def clamped(begin, last):
        """The outputs of a turn lie within the block's: the last turn repeats some."""
        return int32(min(begin, last - outputs))

    @device_function
    @unrolled
    def reduced(totals):
        """The sum over the warp of row r in lane 32 // rows * r (for 2, 4 and 8 rows; else in all lanes: row
        `lane`)."""
        lane = int32(ptx.lane_id())
        if halving:
            for level in unroll(levels):
                width = 16 >> level
                upper = (lane & width) != 0
                for i in unroll(rows >> (level + 1)):
                    other = i + (rows >> (level + 1))
                    kept = totals[i]
                    sent = totals[other]
                    if upper:
                        kept = totals[other]
                        sent = totals[i]
                    totals[i] = kept + ptx.shfl_xor_f32(sent, uint32(width))
            total = totals[0]
            for level in unroll(5 - levels):
                total += ptx.shfl_xor_f32(total, uint32(1 << (4 - levels - level)))
            return total
        mine = float32(0)
        for r in unroll(rows):
            total = warp_sum(totals[r])
            if lane == r:
                mine = total
        return mine

    @device_function
    def keep(shared, y, output, first, value):
        """Write an output, or hold it until its run is complete."""
        if to_records:
            ptx.st_shared_f32(shared + uint32(outputs_at + (output - first) * 4), value)
        else:
            ptx.st_global_f32(y + uint64(output) * uint64(4), value)

    @device_function
    def write_records(shared, y, first, last):
        """The block's outputs as fine records; whole warps go round together."""
        for base in range(0, RECORD_OUTPUTS, warps * 128):
            at = int32(base) + int32(cuda.threadIdx.x) * 4
            v0 = float32(0)
            v1 = float32(0)
            v2 = float32(0)
            v3 = float32(0)
            if at < last - first:
                v0, v1, v2, v3 = ptx.ld_shared_v4_f32(shared + uint32(outputs_at + at * 4))
            store_fine(y, first + at, last, v0, v1, v2, v3)

    @device_function
    @unrolled
    def run(block, blocks, weights, x, gains, eps, addend, y, od, before, expected, after):
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        warp = ptx.uniform(thread >> 5)
        team_number = warp // team
        member = warp - team_number * team
        # Contiguous outputs a block; its teams take turns.
        grains = od // grain
        share = int32(ptx.udiv_u32(grains, blocks))
        extra = int32(grains) - share * blocks
        first = (block * share + int32(min(block, extra))) * grain
        last = ((block + 1) * share + int32(min(block + 1, extra))) * grain
        groups = (last - first + int32(outputs - 1)) // outputs
        turns = int32(max(0, (groups - team_number + (teams - 1)) // teams))
        stride = int32(teams * outputs)
        first_unit = member * units // team
        count = (member + 1) * units // team - first_unit
        start = first_unit * unit
        length = count * unit
        barriers = shared + uint32(warp * (slots * 8))
        ring = shared + uint32(ring_at) + uint32(warp * (slots * slot_bytes))
        if lane == 0:
            for n in range(slots):
                ptx.mbarrier_init(barriers + uint32(n * 8), uint32(copies))
            ptx.fence_mbarrier_init()
        ptx.syncwarp()
        begin = first + team_number * outputs  # of the next turn to be asked for
        for n in range(slots):
            if n < turns:
                at = clamped(begin, last)
                fetch(weights, ring + uint32(n * slot_bytes), barriers + uint32(n * 8), at, od, start, length)
                begin += stride
        if not late or turns <= slots:
            ptx.griddepcontrol_launch_dependents()
        factors = cuda.local.array(held, float32)
        prepare(factors, gains)
        if chained:
            if thread == 0:
                ptx.wait_global_u32(before, expected)
            cuda.syncthreads()
        else:
            ptx.griddepcontrol_wait()
        if ahead > 0:
            for n in range(ahead):
                if slots + n < turns:
                    warm(weights, clamped(begin + n * stride, last), od, start, length)
        stage(factors, shared + uint32(records_at), shared + uint32(scratch_at), x, gains, eps)
        early = float32(0)
        if added and team > 1 and thread < last - first:
            early = ptx.ld_global_f32(addend + uint64(first + thread) * uint64(4))

        words = cuda.local.array(word_count, uint32)
        floats = cuda.local.array(float_count, float32)
        offsets = cuda.local.array(steps, uint32)
        totals = cuda.local.array(rows, float32)
        part = lane & (lanes - 1)
        for s in unroll(steps):
            index = int32(s * across) + lane // lanes
            inside = index < count
            index = int32(min(index, count - 1))
            offsets[s] = uint32(index * unit)
            record = shared + uint32(records_at) + uint32((first_unit + index) * RECORDS_BYTES)
            load(words, floats, s, record, part, inside)

        slot = uint32(0)
        number = uint32(0)
        parity = uint32(0)
        row = lane // spread
        writer = row < outputs and lane == row * spread
        for n in range(turns):
            wanted = first + (team_number + int32(n) * teams) * outputs
            here = clamped(wanted, last)
            output = here + row
            sum = float32(0)
            if added and team == 1 and writer and output >= wanted:
                sum = ptx.ld_global_f32(addend + uint64(output) * uint64(4))
            ptx.mbarrier_wait(barriers + number * uint32(8), parity)
            for r in unroll(rows):
                block_at = ring + slot + uint32(r // copy_rows * piece + r % copy_rows * row_bytes)
                if not aligned:
                    block_at += uint32(address_of(weights, here, r // copy_rows, od, start) & uint64(15))
                total = float32(0)
                for s in unroll(steps):
                    total += multiply(words, floats, s, block_at + offsets[s], part)
                totals[r] = total
            ptx.syncwarp()
            following = int32(n) + slots
            if following < turns:
                at = clamped(begin, last)
                fetch(weights, ring + slot, barriers + number * uint32(8), at, od, start, length)
                if ahead > 0 and following + ahead < turns:
                    warm(weights, clamped(begin + ahead * stride, last), od, start, length)
                begin += stride
                if late and following == turns - 1:
                    ptx.griddepcontrol_launch_dependents()
            slot += uint32(slot_bytes)
            number += uint32(1)
            if number == uint32(slots):
                slot = uint32(0)
                number = uint32(0)
                parity ^= uint32(1)
            mine = reduced(totals)
            if team == 1:
                if pairs:
                    # Row r + outputs is `up` of row r: in the other half of the warp, or `outputs` lanes on.
                    if halving:
                        mine = silu_product(mine, ptx.shfl_xor_f32(mine, uint32(16)))
                    else:
                        mine = silu_product(mine, ptx.shfl_idx_f32(mine, uint32(lane + outputs)))
                if writer and output >= wanted:
                    keep(shared, y, output, first, sum + mine)
            elif row < rows and lane == row * spread:
                local = here - first + row
                if row >= outputs:
                    local += TEAM_OUTPUTS - outputs
                if here + row % outputs >= wanted:
                    ptx.st_shared_f32(shared + uint32(partials_at + (local * team + member) * 4), mine)

        if team > 1:
            cuda.syncthreads()
            if thread < last - first:
                output = first + thread
                sums = shared + uint32(partials_at + thread * (team * 4))
                sum = early
                gate = float32(0)
                for w in unroll(team):
                    gate += ptx.ld_shared_f32(sums + uint32(w * 4))
                if pairs:
                    up = float32(0)
                    for w in unroll(team):
                        up += ptx.ld_shared_f32(sums + uint32((TEAM_OUTPUTS * team + w) * 4))
                    sum = silu_product(gate, up)
                else:
                    sum += gate
                keep(shared, y, output, first, sum)
        if to_records:
            cuda.syncthreads()
            write_records(shared, y, first, last)
        if chained:
            cuda.syncthreads()
            if thread == 0:
                ptx.red_add_release_u32(after, uint32(1))

    return run


def gemv_stream(config: GemvStreamConfig) -> Kernel:
    """y = dequantize(W) x (+ addend), or the gated activation of two such products.

    Arguments: weights uint8 [od or 2 od, row bytes] (GGML blocks; 16-byte aligned, and readable up to the
    next multiple of 16 bytes), x uint8 fine records or f32 [dim], (gains f32 [dim], eps float32: of the
    norm,) (addend f32 [od], may be y,) y f32 [od], or fine records of it, od int32 (a multiple of 64 then).
    Launch on `config.grid(od)`, with pdl=True or without. Chained kernels take three more arguments: before
    uint32 [1], expected uint32, after uint32 [1], all counters zero before the chain's first kernel.
    Integer dot products are exact; sums over blocks are f32 in a fixed order: the same bits on every run.
    """
    run, address = _product(config), ptx.global_address

    def gemv_stream_rows(weights, x, gains, eps, addend, y, od, before, expected, after):
        run(
            int32(cuda.blockIdx.x), int32(cuda.gridDim.x), address(weights), address(x), address(gains), eps,
            address(addend), address(y), od, address(before), expected, address(after),
        )  # fmt: skip

    arguments = (
        Argument("weights", "in", "uint8"),
        Argument("x", "in", "uint8" if config.source == "records" else "float32"),
        *_norm(config),
        Argument("addend", "in", "float32", present=config.addend),
        Argument("y", "out", "uint8" if config.records else "float32"),
        Argument("od", "scalar", "int32"),
        *chain(config.chained),
    )
    return Kernel(
        name="gemv_stream",
        config=config,
        function=gemv_stream_rows,
        signature=signature_of(arguments),
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
        min_blocks=2,  # this kernel's and the next one's
    )


def gemv_stream_two(config: GemvTwoConfig) -> Kernel:
    """As `gemv_stream` for a matrix whose upper rows are of one format and whose lower rows of another: some
    blocks take these, the others those, and no seam lies between.

    Arguments: upper and lower uint8 (weights), x, (gains, eps,) y f32 [od_upper + od_lower], od_upper and
    od_lower int32, split int32: blocks that take the upper rows (`config.split`). Launch on
    `config.grid(...)`.
    """
    run_upper, run_lower, address = _product(config.upper), _product(config.lower), ptx.global_address

    def gemv_stream_both(upper, lower, x, gains, eps, y, od_upper, od_lower, split, before, expected, after):
        block = int32(cuda.blockIdx.x)
        source = address(x)
        target = address(y)
        if block < split:
            run_upper(
                block, int32(split), address(upper), source, address(gains), eps, target, target, od_upper,
                address(before), expected, address(after),
            )  # fmt: skip
        else:
            rest = int32(cuda.gridDim.x) - int32(split)
            target += uint64(od_upper) * uint64(4)
            run_lower(
                block - int32(split), rest, address(lower), source, address(gains), eps, target, target,
                od_lower, address(before), expected, address(after),
            )  # fmt: skip

    arguments = (
        Argument("upper", "in", "uint8"),
        Argument("lower", "in", "uint8"),
        Argument("x", "in", "uint8" if config.upper.source == "records" else "float32"),
        *_norm(config.upper),
        Argument("y", "out", "float32"),
        Argument("od_upper", "scalar", "int32"),
        Argument("od_lower", "scalar", "int32"),
        Argument("split", "scalar", "int32"),
        *chain(config.upper.chained),
    )
    return Kernel(
        name="gemv_stream_two",
        config=config,
        function=gemv_stream_both,
        signature=signature_of(arguments),
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
        min_blocks=2,
    )


# What a decode step of Qwen2.5-7B Q4_K_M launches.
_SHAPES = (
    ("Q4_K", 3584, 4608, {"source": "norm"}),
    ("Q4_K", 3584, 3584, {"addend": True}),
    ("Q4_K", 3584, 18944, {"source": "norm", "pairs": True, "records": True}),
    ("Q4_K", 18944, 3584, {"addend": True}),
    ("Q6_K", 18944, 3584, {"addend": True}),
    ("Q6_K", 3584, 152064, {"source": "norm"}),
)


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    configs = [GemvStreamConfig.for_shape(*shape, **options) for *shape, options in _SHAPES]
    two = GemvTwoConfig.for_shapes("Q4_K", 4096, "Q6_K", 512, 3584, "norm")
    return [*(gemv_stream(config) for config in configs), gemv_stream_two(two)]
