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

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.checks import check_choice
from minfer.cuda.elementwise.activation import silu_product
from minfer.cuda.elementwise.rows import block_sum, warp_sum
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.q8 import q8_record_bytes, store_q8_shared
from minfer.cuda.signature import signature_of

SHARED_LIMIT = 113 * 1024  # two blocks an SM of sm_90: 228 KiB, of which 1 KiB a block is the system's
SOURCES = ("q8", "f32", "norm")
WEIGHTS = 256  # a block's
RECORDS_BYTES = 320  # a block's activations as q8 records
TEAM_OUTPUTS = 64  # most outputs of a block whose warps share rows
MOST_WORDS = 64  # registers of activations a lane
LOADS = 8  # 16-byte loads of activations that a thread has in flight


@dataclass(frozen=True)
class GemvStreamConfig:
    """y[od] = W[od, dim] x[dim] (+ addend[od]), or y[od] = silu(W[:od] x) * (W[od:] x).

    Attributes:
        format: W's block format (a key of `minfer.cuda.gemv.lanes.LANE_DOTS`).
        dim: weights a row, a multiple of 256.
        source: what x is: "q8" records, "f32", quantized by every block for itself, or "norm": f32 that
            goes through an RMS norm first.
        pairs: W has 2 od rows, gate above up; the outputs are their gated activation.
        addend: add a vector (the residual stream).
        rows: rows that a warp takes at a time (even for pairs).
        warps: warps a block.
        team: warps that share a row, each a range of its columns: 1, or all of the block's.
        slots: turns of `rows` rows that a warp has in flight.
    """

    format: str
    dim: int
    source: str = "q8"
    pairs: bool = False
    addend: bool = False
    rows: int = 2
    warps: int = 8
    team: int = 1
    slots: int = 2

    def __post_init__(self) -> None:
        check_choice("gemv_stream", "format", self.format, tuple(LANE_DOTS))
        check_choice("gemv_stream", "source", self.source, SOURCES)
        check_choice("gemv_stream", "warps", self.warps, tuple(range(1, 17)))
        check_choice("gemv_stream", "rows", self.rows, tuple(range(1, 9)))
        check_choice("gemv_stream", "slots", self.slots, tuple(range(1, 9)))
        check_choice("gemv_stream", "team", self.team, tuple(sorted({1, self.warps})))
        if self.dim <= 0 or self.dim % WEIGHTS:
            raise ConfigRefused(f"gemv_stream: rows of {self.dim} weights; take a multiple of {WEIGHTS}")
        if self.team > self.units:
            raise ConfigRefused(
                f"gemv_stream: {self.team} warps share rows of {self.units} blocks; take fewer"
            )
        if self.pairs and (self.rows % 2 or self.addend):
            raise ConfigRefused(
                f"gemv_stream: pairs with rows={self.rows}, addend={self.addend}; take even rows, no addend"
            )
        if self.steps * LANE_DOTS[self.format].words > MOST_WORDS:
            raise ConfigRefused(
                f"gemv_stream: a lane would hold {self.steps} blocks' activations; share rows among more warps"
            )
        if self.source == "norm" and self.dim > 4 * LOADS * self.threads:
            raise ConfigRefused(
                f"gemv_stream: a row of {self.dim} does not fit the registers of {self.threads} threads that "
                "norm it; take more warps"
            )
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigRefused(
                f"gemv_stream: {self.shared_bytes} bytes of shared memory a block, the limit is "
                f"{SHARED_LIMIT}: take fewer rows, warps or slots"
            )

    def __str__(self) -> str:
        extra = (" pairs" if self.pairs else "") + (" addend" if self.addend else "")
        tile = f"rows={self.rows} warps={self.warps} team={self.team} slots={self.slots}"
        return f"{self.format} dim={self.dim} {self.source} {tile}{extra}"

    @property
    def units(self) -> int:
        """Blocks of weights a row."""
        return self.dim // WEIGHTS

    @property
    def unit_bytes(self) -> int:
        return BLOCKS[self.format].row_bytes(WEIGHTS)

    @property
    def across(self) -> int:
        """Blocks that a warp works on at a time."""
        return 32 // LANE_DOTS[self.format].lanes

    @property
    def steps(self) -> int:
        """Times that a warp goes on along its part of a row."""
        return -(-(-(-self.units // self.team)) // self.across)

    @property
    def outputs(self) -> int:
        """Outputs of a warp's turn."""
        return self.rows // 2 if self.pairs else self.rows

    @property
    def piece_bytes(self) -> int:
        """Shared memory of a warp's part of a row: copies begin and end at 16-byte lines."""
        slack = 0 if self.unit_bytes % 16 == 0 else 30
        return -(-(-(-self.units // self.team) * self.unit_bytes + slack) // 16) * 16

    @property
    def slot_bytes(self) -> int:
        return self.rows * self.piece_bytes

    @property
    def head_bytes(self) -> int:
        """mbarriers, and a float a warp."""
        return -(-(self.warps * (self.slots * 8 + 4)) // 128) * 128

    @property
    def partial_bytes(self) -> int:
        """Sums of the warps that share rows."""
        rows = -(-TEAM_OUTPUTS // self.outputs) * self.rows
        return 0 if self.team == 1 else rows * self.team * 4

    @property
    def ring_offset(self) -> int:
        size = self.head_bytes + q8_record_bytes(self.dim) + self.partial_bytes
        return -(-size // 128) * 128

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Barriers, the activations' records, partial sums, then a ring of slots a warp."""
        return self.ring_offset + self.warps * self.slots * self.slot_bytes

    def grid(self, od: int, sms: int = 132) -> tuple[int, int, int]:
        """A block an SM; more where its warps share rows and there are many."""
        blocks = min(sms, -(-od // self.outputs))
        return (max(1, blocks if self.team == 1 else max(blocks, -(-od // TEAM_OUTPUTS))), 1, 1)

    @classmethod
    def for_shape(
        cls, format: str, dim: int, od: int, source: str = "q8", pairs: bool = False, addend: bool = False,
        sms: int = 132,
    ) -> GemvStreamConfig:  # fmt: skip
        """A good config for od outputs from rows of dim. Raises ConfigRefused where there is none."""
        check_choice("gemv_stream", "format", format, tuple(LANE_DOTS))
        units, across, words = dim // WEIGHTS, 32 // LANE_DOTS[format].lanes, LANE_DOTS[format].words
        options = {"source": source, "pairs": pairs, "addend": addend}

        def steps(team: int) -> int:
            return -(-(-(-units // team)) // across)

        shares = [{"warps": warps} for warps in (8, 4, 2, 1)]
        if steps(1) * words > MOST_WORDS:
            # Whole rows for all warps: the number that idles the fewest lanes, the larger of equals.
            fitting = [t for t in range(4, 13) if steps(t) * words <= MOST_WORDS] or [16]
            team = max(fitting, key=lambda t: (units / (t * steps(t)), t))
            shares = [{"warps": team, "team": team}]
        refused = None
        for share in shares:
            for rows, slots in ((2, 3), (2, 2), (2, 1), (1, 1)):
                try:
                    return cls(format, dim, rows=rows, slots=slots, **share, **options)
                except ConfigRefused as error:
                    refused = error
        raise refused


def gemv_stream(config: GemvStreamConfig) -> Kernel:
    """y = dequantize(W) x (+ addend), or the gated activation of two such products.

    Arguments: weights uint8 [od or 2 od, row bytes] (GGML blocks; 16-byte aligned, and readable up to the
    next multiple of 16 bytes), x uint8 q8 records or f32 [dim], (gains f32 [dim], eps float32: of the norm,)
    (addend f32 [od], may be y,) y f32 [od], od int32. Launch on `config.grid(od)`, with pdl=True or without.
    Integer dot products are exact; sums over blocks are f32 in a fixed order: the same bits on every run.
    """
    dot = LANE_DOTS[config.format]
    load, multiply = dot.load, dot.dot
    lanes, across, steps = dot.lanes, config.across, config.steps
    rows, outputs, team, warps, slots = config.rows, config.outputs, config.team, config.warps, config.slots
    teams = warps // team
    units, unit, row_bytes = config.units, config.unit_bytes, config.units * config.unit_bytes
    aligned = unit % 16 == 0
    piece, slot_bytes, threads = config.piece_bytes, config.slot_bytes, config.threads
    records_at, partials_at, ring_at = (
        config.head_bytes,
        config.head_bytes + q8_record_bytes(config.dim),
        config.ring_offset,
    )
    scratch_at = warps * slots * 8
    source, pairs, added, dim = config.source, config.pairs, config.addend, config.dim
    fours, held = dim // 4, LOADS * 4
    rounds = -(-fours // threads)
    batches = -(-rounds // LOADS)
    total_of = block_sum(warps)
    word_count, float_count = steps * dot.words, steps * 4
    record_chunks = q8_record_bytes(dim) // 16

    @device_function
    def row_at(matrix, output, r, od):
        """Address of row r of the turn that this output is in."""
        row = output
        if pairs and r >= outputs:
            row += od
        return matrix + uint64(row) * uint64(row_bytes)

    @device_function
    def fetch(matrix, slot, barrier, first, last, od, start, length):
        """Start the copies of a turn: lane r that of its row. Rows past the block's last are that one."""
        lane = int32(ptx.lane_id())
        if lane < rows:
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
            ptx.mbarrier_arrive_expect_tx(barrier, size)
            ptx.bulk_load(slot + uint32(lane * piece), begin, size, barrier)

    @device_function
    @unrolled
    def load_batch(values, batch, x):
        for i in unroll(LOADS):
            four = int32(cuda.threadIdx.x) + int32((batch * LOADS + i) * threads)
            if batch * LOADS + i < rounds and four < fours:
                v0, v1, v2, v3 = ptx.ld_global_v4_f32(x + uint64(four) * uint64(16))
                values[i * 4] = v0
                values[i * 4 + 1] = v1
                values[i * 4 + 2] = v2
                values[i * 4 + 3] = v3

    @device_function
    @unrolled
    def store_batch(values, batch, records):
        for i in unroll(LOADS):
            four = int32(cuda.threadIdx.x) + int32((batch * LOADS + i) * threads)
            if batch * LOADS + i < rounds and four < fours:
                store_q8_shared(
                    records, four * 4, values[i * 4], values[i * 4 + 1], values[i * 4 + 2], values[i * 4 + 3]
                )

    @device_function
    def wait():
        ptx.griddepcontrol_launch_dependents()
        ptx.griddepcontrol_wait()

    @device_function
    def stage_records(shared, x, gains, eps):
        wait()
        for i in range(int32(cuda.threadIdx.x), record_chunks, threads):
            w0, w1, w2, w3 = ptx.ld_global_v4_u32(x + uint64(i) * uint64(16))
            ptx.st_shared_v4_u32(shared + uint32(records_at + i * 16), w0, w1, w2, w3)

    @device_function
    @unrolled
    def stage_f32(shared, x, gains, eps):
        wait()
        values = cuda.local.array(held, float32)
        for batch in unroll(batches):
            load_batch(values, batch, x)
            store_batch(values, batch, shared + uint32(records_at))

    @device_function
    @unrolled
    def stage_normed(shared, x, gains, eps):
        values = cuda.local.array(held, float32)
        factors = cuda.local.array(held, float32)
        for i in unroll(held):
            values[i] = float32(0)
        load_batch(factors, 0, gains)
        wait()
        load_batch(values, 0, x)
        squares = float32(0)
        for i in unroll(held):
            squares += values[i] * values[i]
        mean = total_of(squares, shared + uint32(scratch_at)) * float32(1.0 / dim)
        scale = ptx.rsqrt_approx(mean + eps)
        for i in unroll(rounds * 4):
            values[i] = values[i] * scale * factors[i]
        store_batch(values, 0, shared + uint32(records_at))

    stage = {"q8": stage_records, "f32": stage_f32, "norm": stage_normed}[source]

    @device_function
    @unrolled
    def run(weights, x, gains, eps, addend, y, od):
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        warp = ptx.uniform(thread >> 5)
        team_number = warp // team
        member = warp - team_number * team
        # Contiguous outputs a block; its teams take turns.
        share = int32(ptx.udiv_u32(od, cuda.gridDim.x))
        extra = int32(od) - share * int32(cuda.gridDim.x)
        block = int32(cuda.blockIdx.x)
        first = block * share + int32(min(block, extra))
        last = (block + 1) * share + int32(min(block + 1, extra))
        groups = (last - first + int32(outputs - 1)) // outputs
        turns = int32(max(0, (groups - team_number + (teams - 1)) // teams))
        first_unit = member * units // team
        count = (member + 1) * units // team - first_unit
        start = first_unit * unit
        barriers = shared + uint32(warp * (slots * 8))
        ring = shared + uint32(ring_at) + uint32(warp * (slots * slot_bytes))
        if lane == 0:
            for n in range(slots):
                ptx.mbarrier_init(barriers + uint32(n * 8), uint32(rows))
            ptx.fence_mbarrier_init()
        ptx.syncwarp()
        for n in range(slots):
            if n < turns:
                begin = first + (team_number + n * teams) * outputs
                fetch(
                    weights, ring + uint32(n * slot_bytes), barriers + uint32(n * 8),
                    begin, last, od, start, count * unit,
                )  # fmt: skip
        stage(shared, x, gains, eps)
        cuda.syncthreads()

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
            if added and team == 1:
                if lane < outputs and output < last:
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
                    ptx.st_global_f32(y + uint64(output) * uint64(4), sum)
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
                sum = float32(0)
                if added:
                    sum = ptx.ld_global_f32(addend + uint64(output) * uint64(4))
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
                ptx.st_global_f32(y + uint64(output) * uint64(4), sum)

    address = ptx.global_address

    def gemv_stream_plain(weights, x, y, od):
        target = address(y)
        run(address(weights), address(x), target, float32(0), target, target, od)

    def gemv_stream_added(weights, x, addend, y, od):
        target = address(y)
        run(address(weights), address(x), target, float32(0), address(addend), target, od)

    def gemv_stream_normed(weights, x, gains, eps, y, od):
        target = address(y)
        run(address(weights), address(x), address(gains), eps, target, target, od)

    def gemv_stream_normed_added(weights, x, gains, eps, addend, y, od):
        run(address(weights), address(x), address(gains), eps, address(addend), address(y), od)

    normed = source == "norm"
    function = {
        (False, False): gemv_stream_plain,
        (False, True): gemv_stream_added,
        (True, False): gemv_stream_normed,
        (True, True): gemv_stream_normed_added,
    }[normed, added]
    norm = (Argument("gains", "in", "float32"), Argument("eps", "scalar", "float32"))
    arguments = (
        Argument("weights", "in", "uint8"),
        Argument("x", "in", "uint8" if source == "q8" else "float32"),
        *(norm if normed else ()),
        *((Argument("addend", "in", "float32"),) if added else ()),
        Argument("y", "out", "float32"),
        Argument("od", "scalar", "int32"),
    )
    return Kernel(
        name="gemv_stream",
        config=config,
        function=function,
        signature=signature_of(arguments),
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        min_blocks=2,  # this kernel's and the next one's
    )


# What a decode step of Qwen2.5-7B Q4_K_M launches: (format, dim, od, source, pairs, addend).
_SHAPES = (
    ("Q4_K", 3584, 4608, "norm", False, False),
    ("Q6_K", 3584, 512, "norm", False, False),
    ("Q4_K", 3584, 3584, "q8", False, True),
    ("Q4_K", 3584, 18944, "norm", True, False),
    ("Q4_K", 18944, 3584, "f32", False, True),
    ("Q6_K", 18944, 3584, "f32", False, True),
    ("Q6_K", 3584, 152064, "norm", False, False),
)


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    configs = dict.fromkeys(GemvStreamConfig.for_shape(*shape) for shape in _SHAPES)
    return [gemv_stream(config) for config in configs]
