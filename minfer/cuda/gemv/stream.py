"""Decode GEMV on sm_90, with what surrounds the product in the same kernel.

A decode step is a chain of kernels that each read some megabytes of weights as fast as memory gives them.
What it loses is lost at the seams, so that

- weights do not wait for the kernel before: each warp fills a ring of its own in shared memory by bulk copies
  first of all, and only then waits (`minfer.cuda.dependent`). A block an SM, of at most half its shared
  memory: the next kernel's block has room beside it and fills its ring while this one still runs;
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
from minfer.cuda.gemv.stream_config import RECORD_OUTPUTS, GemvStreamConfig, GemvTwoConfig
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.signature import signature_of

RECORDS_BYTES = 4 * FINE_RECORD_BYTES  # a block's activations


def _product(config: GemvStreamConfig) -> Callable:
    """Device function (block, blocks, weights, x, gains, eps, addend, y, od): this block's outputs of a
    product that `blocks` blocks share; pointers as global addresses."""
    dot = LANE_DOTS[config.format]
    load, multiply = dot.load, dot.dot
    lanes, across, steps = dot.lanes, config.across, config.steps
    rows, outputs, team, warps, slots = config.rows, config.outputs, config.team, config.warps, config.slots
    teams = warps // team
    units, unit, row_bytes = config.units, config.unit_bytes, config.units * config.unit_bytes
    aligned = unit % 16 == 0
    piece, slot_bytes = config.piece_bytes, config.slot_bytes
    scratch_at, records_at = 8 + warps * slots * 8, config.head_bytes
    partials_at = records_at + fine_record_bytes(config.dim)
    outputs_at, ring_at = partials_at + config.partial_bytes, config.ring_offset
    pairs, added, stage = config.pairs, config.addend, stage_activations(config)
    to_records, ahead = config.records, config.ahead
    grain = FINE_RUN if to_records else 1
    word_count, float_count = steps * dot.words, steps * dot.floats

    @device_function
    def row_at(matrix, output, r, od):
        """Address of row r of the turn that this output is in."""
        row = output
        if pairs and r >= outputs:
            row += od
        return matrix + uint64(row) * uint64(row_bytes)

    @device_function
    def source_of(matrix, first, last, od, start, length):
        """(address, bytes) of what lane r copies of row r of a turn. Rows past the block's last are that
        one."""
        lane = int32(ptx.lane_id())
        of_turn = lane
        if pairs and lane >= outputs:
            of_turn -= outputs
        output = int32(min(first + of_turn, last - 1))
        begin = row_at(matrix, output, lane, od) + uint64(start)
        size = uint32(length)
        if not aligned:
            line = begin & uint64(0xFFFFFFFFFFFFFFF0)
            size = (uint32(begin - line) + size + uint32(15)) & uint32(0xFFFFFFF0)
            begin = line
        return begin, size

    @device_function
    def fetch(matrix, slot, barrier, first, last, od, start, length):
        """Start the copies of a turn."""
        lane = int32(ptx.lane_id())
        if lane < rows:
            begin, size = source_of(matrix, first, last, od, start, length)
            ptx.mbarrier_arrive_expect_tx(barrier, size)
            ptx.bulk_load(slot + uint32(lane * piece), begin, size, barrier)

    @device_function
    def warm(matrix, first, last, od, start, length):
        """Bring a later turn's rows into L2."""
        if int32(ptx.lane_id()) < rows:
            begin, size = source_of(matrix, first, last, od, start, length)
            ptx.bulk_prefetch_l2(begin, size)

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
    def run(block, blocks, weights, x, gains, eps, addend, y, od):
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
        first_unit = member * units // team
        count = (member + 1) * units // team - first_unit
        start = first_unit * unit
        barriers = shared + uint32(8 + warp * (slots * 8))
        ring = shared + uint32(ring_at) + uint32(warp * (slots * slot_bytes))
        if lane == 0:
            for n in range(slots):
                ptx.mbarrier_init(barriers + uint32(n * 8), uint32(rows))
            if warp == 0:
                ptx.mbarrier_init(shared, uint32(1))
            ptx.fence_mbarrier_init()
        ptx.syncwarp()
        for n in range(slots):
            if n < turns:
                begin = first + (team_number + n * teams) * outputs
                fetch(
                    weights, ring + uint32(n * slot_bytes), barriers + uint32(n * 8),
                    begin, last, od, start, count * unit,
                )  # fmt: skip
        for n in range(slots, slots + ahead):
            if n < turns:
                warm(weights, first + (team_number + n * teams) * outputs, last, od, start, count * unit)
        # The next kernel's copies are wanted when this one's have all been asked for, not before.
        if turns <= slots:
            ptx.griddepcontrol_launch_dependents()
        cuda.syncthreads()
        stage(shared + uint32(records_at), shared + uint32(scratch_at), shared, x, gains, eps)
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
        for n in range(turns):
            group = team_number + int32(n) * teams
            begin = first + group * outputs
            output = begin + lane
            sum = float32(0)
            if added and team == 1 and lane < outputs and output < last:
                sum = ptx.ld_global_f32(addend + uint64(output) * uint64(4))
            ptx.mbarrier_wait(barriers + number * uint32(8), parity)
            for r in unroll(rows):
                here = ring + slot + uint32(r * piece)
                if not aligned:
                    at = int32(min(begin + r % outputs, last - 1))
                    here += uint32((row_at(weights, at, r, od) + uint64(start)) & uint64(15))
                total = float32(0)
                for s in unroll(steps):
                    total += multiply(words, floats, s, here + offsets[s], part)
                totals[r] = total
            ptx.syncwarp()
            following = int32(n) + slots
            if following < turns:
                fetch(
                    weights, ring + slot, barriers + number * uint32(8),
                    first + (team_number + following * teams) * outputs, last, od, start, count * unit,
                )  # fmt: skip
                if following == turns - 1:
                    ptx.griddepcontrol_launch_dependents()
            slot += uint32(slot_bytes)
            number += uint32(1)
            if number == uint32(slots):
                slot = uint32(0)
                number = uint32(0)
                parity ^= uint32(1)
            mine = float32(0)
            other = float32(0)
            for r in unroll(rows):
                total = warp_sum(totals[r])
                if team == 1 and pairs and r >= outputs:
                    if lane == r - outputs:
                        other = total
                else:
                    if lane == r:
                        mine = total
            if team == 1:
                if pairs:
                    sum = silu_product(mine, other)
                else:
                    sum += mine
                if lane < outputs and output < last:
                    keep(shared, y, output, first, sum)
            else:
                if lane < rows:
                    at = ((group * rows + lane) * team + member) * 4
                    ptx.st_shared_f32(shared + uint32(partials_at + at), mine)

        if team > 1:
            cuda.syncthreads()
            if thread < last - first:
                output = first + thread
                group = thread // outputs
                row = group * rows + (thread - group * outputs)
                sums = shared + uint32(partials_at + row * (team * 4))
                sum = early
                gate = float32(0)
                for w in unroll(team):
                    gate += ptx.ld_shared_f32(sums + uint32(w * 4))
                if pairs:
                    up = float32(0)
                    for w in unroll(team):
                        up += ptx.ld_shared_f32(sums + uint32((outputs * team + w) * 4))
                    sum = silu_product(gate, up)
                else:
                    sum += gate
                keep(shared, y, output, first, sum)
        if to_records:
            cuda.syncthreads()
            write_records(shared, y, first, last)

    return run


def gemv_stream(config: GemvStreamConfig) -> Kernel:
    """y = dequantize(W) x (+ addend), or the gated activation of two such products.

    Arguments: weights uint8 [od or 2 od, row bytes] (GGML blocks; 16-byte aligned, and readable up to the
    next multiple of 16 bytes), x uint8 fine records or f32 [dim], (gains f32 [dim], eps float32: of the
    norm,) (addend f32 [od], may be y,) y f32 [od], or fine records of it, od int32 (a multiple of 64 then).
    Launch on `config.grid(od)`, with pdl=True or without.
    Integer dot products are exact; sums over blocks are f32 in a fixed order: the same bits on every run.
    """
    run, added, normed = _product(config), config.addend, config.source == "norm"

    @device_function
    def whole(weights, x, gains, eps, addend, y, od):
        run(int32(cuda.blockIdx.x), int32(cuda.gridDim.x), weights, x, gains, eps, addend, y, od)

    address = ptx.global_address

    def gemv_stream_plain(weights, x, y, od):
        target = address(y)
        whole(address(weights), address(x), target, float32(0), target, target, od)

    def gemv_stream_added(weights, x, addend, y, od):
        target = address(y)
        whole(address(weights), address(x), target, float32(0), address(addend), target, od)

    def gemv_stream_normed(weights, x, gains, eps, y, od):
        target = address(y)
        whole(address(weights), address(x), address(gains), eps, target, target, od)

    def gemv_stream_normed_added(weights, x, gains, eps, addend, y, od):
        whole(address(weights), address(x), address(gains), eps, address(addend), address(y), od)

    function = {
        (False, False): gemv_stream_plain,
        (False, True): gemv_stream_added,
        (True, False): gemv_stream_normed,
        (True, True): gemv_stream_normed_added,
    }[normed, added]
    norm = (Argument("gains", "in", "float32"), Argument("eps", "scalar", "float32"))
    arguments = (
        Argument("weights", "in", "uint8"),
        Argument("x", "in", "uint8" if config.source == "records" else "float32"),
        *(norm if normed else ()),
        *((Argument("addend", "in", "float32"),) if added else ()),
        Argument("y", "out", "uint8" if config.records else "float32"),
        Argument("od", "scalar", "int32"),
    )
    return Kernel(
        name="gemv_stream",
        config=config,
        function=function,
        signature=signature_of(arguments),
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        min_blocks=2,  # this kernel's and the next one's
    )


def gemv_stream_two(config: GemvTwoConfig) -> Kernel:
    """As `gemv_stream` for a matrix whose upper rows are of one format and whose lower rows of another: some
    blocks take these, the others those, and no seam lies between.

    Arguments: upper and lower uint8 (weights), x, (gains, eps,) y f32 [od_upper + od_lower], od_upper and
    od_lower int32, split int32: blocks that take the upper rows (`config.split`). Launch on
    `config.grid(...)`.
    """
    run_upper, run_lower = _product(config.upper), _product(config.lower)
    normed = config.upper.source == "norm"

    @device_function
    def both(upper, lower, x, gains, eps, y, od_upper, od_lower, split):
        block = int32(cuda.blockIdx.x)
        if block < split:
            run_upper(block, int32(split), upper, x, gains, eps, y, y, od_upper)
        else:
            rest = int32(cuda.gridDim.x) - int32(split)
            target = y + uint64(od_upper) * uint64(4)
            run_lower(block - int32(split), rest, lower, x, gains, eps, target, target, od_lower)

    address = ptx.global_address

    def gemv_stream_two_plain(upper, lower, x, y, od_upper, od_lower, split):
        target, none = address(y), float32(0)
        both(address(upper), address(lower), address(x), target, none, target, od_upper, od_lower, split)

    def gemv_stream_two_normed(upper, lower, x, gains, eps, y, od_upper, od_lower, split):
        target = address(y)
        both(
            address(upper), address(lower), address(x), address(gains), eps, target, od_upper, od_lower,
            split,
        )  # fmt: skip

    norm = (Argument("gains", "in", "float32"), Argument("eps", "scalar", "float32"))
    arguments = (
        Argument("upper", "in", "uint8"),
        Argument("lower", "in", "uint8"),
        Argument("x", "in", "uint8" if config.upper.source == "records" else "float32"),
        *(norm if normed else ()),
        Argument("y", "out", "float32"),
        Argument("od_upper", "scalar", "int32"),
        Argument("od_lower", "scalar", "int32"),
        Argument("split", "scalar", "int32"),
    )
    return Kernel(
        name="gemv_stream_two",
        config=config,
        function=gemv_stream_two_normed if normed else gemv_stream_two_plain,
        signature=signature_of(arguments),
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
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
