"""How the decode GEMV of sm_90 is cut: rows to warps, columns to lanes, copies to slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minfer.cuda.blocks import BLOCKS
from minfer.cuda.checks import check_choice
from minfer.cuda.gemv.fine import FINE_RUN, fine_record_bytes
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.kernel import ConfigRefused

SHARED_LIMIT = 227 * 1024  # a block's on sm_90
HALF_LIMIT = 113 * 1024  # of two equal blocks an SM: 228 KiB, of which 1 KiB a block is the system's
SOURCES = ("records", "norm")
WEIGHTS = 256  # a block's
TEAM_OUTPUTS = 64  # most outputs of a block whose warps share rows
RECORD_OUTPUTS = 256  # most outputs of a block that writes records
MOST_WORDS = 64  # registers of activations a lane
MOST_ROWS = 8  # of a turn
ONE_TURN_WARPS = 12
LOADS = 8  # 16-byte loads of activations that a thread has in flight


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class GemvStreamConfig:
    """y[od] = W[od, dim] x[dim] (+ addend[od]), or y[od] = silu(W[:od] x) * (W[od:] x).

    Attributes:
        format: W's block format (a key of `minfer.cuda.gemv.lanes.LANE_DOTS`).
        dim: weights a row, a multiple of 256.
        source: what x is: fine "records", or "norm": f32 that every block norms and quantizes for itself.
        pairs: W has 2 od rows, gate above up; the outputs are their gated activation.
        addend: add a vector (the residual stream).
        records: write y as fine records.
        rows: rows that a warp takes at a time (even for pairs).
        warps: warps a block.
        team: warps that share a row, each a range of its columns; a divisor of `warps`.
        slots: turns of `rows` rows that a warp has in flight.
        ahead: turns that it has on their way into L2, beyond those in its slots, once it has waited.
        resident: blocks an SM that the grid is sized for.
        chained: wait for the kernel before by a counter in memory, and count for the next one.
        late: let the next kernel start when this one's last copies have been asked for, not at once.
    """

    format: str
    dim: int
    source: str = "records"
    pairs: bool = False
    addend: bool = False
    records: bool = False
    rows: int = 2
    warps: int = 8
    team: int = 1
    slots: int = 2
    ahead: int = 0
    late: bool = False
    resident: int = 1
    chained: bool = False

    def __post_init__(self) -> None:
        check_choice("gemv_stream", "format", self.format, tuple(LANE_DOTS))
        check_choice("gemv_stream", "source", self.source, SOURCES)
        check_choice("gemv_stream", "warps", self.warps, tuple(range(1, 17)))
        check_choice("gemv_stream", "rows", self.rows, tuple(range(1, MOST_ROWS + 1)))
        check_choice("gemv_stream", "slots", self.slots, tuple(range(1, 9)))
        check_choice("gemv_stream", "resident", self.resident, (1, 2))
        check_choice("gemv_stream", "ahead", self.ahead, tuple(range(17)))
        check_choice("gemv_stream", "team", self.team, tuple(n for n in range(1, 17) if self.warps % n == 0))
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
                f"gemv_stream: a lane would hold activations of {self.steps} blocks; let more warps share"
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
        extra += (
            (" ->records" if self.records else "")
            + (" late" if self.late else "")
            + (" chained" if self.chained else "")
        )
        extra += "" if self.resident == 1 else f" resident={self.resident}"
        tile = f"rows={self.rows} warps={self.warps} team={self.team} slots={self.slots}+{self.ahead}"
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
        return _ceil(_ceil(self.units, self.team), self.across)

    @property
    def outputs(self) -> int:
        """Outputs of a warp's turn."""
        return self.rows // 2 if self.pairs else self.rows

    @property
    def copy_rows(self) -> int:
        """Rows of one copy: neighbouring rows whole, or a part of one row."""
        return self.outputs if self.team == 1 else 1

    @property
    def copies(self) -> int:
        """Copies of a turn."""
        return self.rows // self.copy_rows

    @property
    def piece_bytes(self) -> int:
        """Shared memory of a copy: it begins and ends at 16-byte lines."""
        slack = 0 if self.unit_bytes % 16 == 0 else 30
        return _ceil(self.copy_rows * _ceil(self.units, self.team) * self.unit_bytes + slack, 16) * 16

    @property
    def slot_bytes(self) -> int:
        return self.copies * self.piece_bytes

    @property
    def head_bytes(self) -> int:
        """mbarriers: the records', and one a slot; and a float a warp."""
        return _ceil(8 + self.warps * (self.slots * 8 + 4), 128) * 128

    @property
    def partial_bytes(self) -> int:
        """Sums of the warps that share rows."""
        return 0 if self.team == 1 else TEAM_OUTPUTS * (self.rows // self.outputs) * self.team * 4

    @property
    def output_bytes(self) -> int:
        """A block's outputs, before they become records."""
        return RECORD_OUTPUTS * 4 if self.records else 0

    @property
    def ring_offset(self) -> int:
        size = self.head_bytes + fine_record_bytes(self.dim) + self.partial_bytes + self.output_bytes
        return _ceil(size, 128) * 128

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Barriers, the activations' records, partial sums, then a ring of slots a warp."""
        return self.ring_offset + self.warps * self.slots * self.slot_bytes

    def grid(self, od: int, sms: int = 132) -> tuple[int, int, int]:
        """A block an SM; more where a block cannot hold so many sums or outputs, fewer where they are not
        enough for a turn of each. Raises ConfigRefused for fewer outputs than a turn's."""
        blocks = min(self.resident * sms, od // (FINE_RUN if self.records else self.outputs))
        if blocks < 1:
            raise ConfigRefused(f"gemv_stream: {od} outputs, a turn has {self.outputs}; take fewer rows")
        if self.team > 1:
            blocks = max(blocks, _ceil(od, TEAM_OUTPUTS))
        if self.records:
            blocks = max(blocks, _ceil(od, RECORD_OUTPUTS))
        return (blocks, 1, 1)

    @classmethod
    def for_shape(
        cls, format: str, dim: int, od: int, source: str = "records", pairs: bool = False,
        addend: bool = False, records: bool = False, chained: bool = False, sms: int = 132,
    ) -> GemvStreamConfig:  # fmt: skip
        """A good config for od outputs from rows of dim. Raises ConfigRefused where there is none."""
        check_choice("gemv_stream", "format", format, tuple(LANE_DOTS))
        options = {"source": source, "pairs": pairs, "addend": addend, "records": records, "chained": chained}
        refused: ConfigRefused | None = None
        each = 2 if pairs else 1
        for cut in _cuts(format, dim, _ceil(od, sms) * each, od * each):
            try:
                config = cls(format, dim, **options, **cut)
            except ConfigRefused as error:
                refused = error
                continue
            if config.shared_bytes <= HALF_LIMIT:
                return config
            refused = ConfigRefused(
                f"gemv_stream: {config.shared_bytes} bytes of shared memory for rows of {dim}, the next "
                f"kernel leaves {HALF_LIMIT}: rows are too long"
            )
        raise refused


def _cuts(format: str, dim: int, rows: int, limit: int) -> Iterator[dict[str, int]]:
    """Cuts of a block's `rows` rows, the best first; the matrix has `limit` rows.

    Few rows go into the rings as a whole, a turn a warp. Long rows are shared by all warps, by the number of
    them that idles the fewest lanes. Else a warp takes two rows at a time.
    """
    units, dot = dim // WEIGHTS, LANE_DOTS[format]
    across = 32 // dot.lanes

    def steps(team: int) -> int:
        return _ceil(_ceil(units, team), across)

    if steps(1) * dot.words > MOST_WORDS:
        fitting = [t for t in range(4, 13) if steps(t) * dot.words <= MOST_WORDS] or [16]
        team = max(fitting, key=lambda t: (units / (t * steps(t)), t))
        for n, slots in ((2, 3), (2, 2), (2, 1), (1, 1)):
            yield {"rows": min(n, limit), "slots": slots, "warps": team, "team": team}
        return
    turn = _ceil(rows, ONE_TURN_WARPS)
    if turn <= MOST_ROWS:
        yield {"rows": turn, "slots": 1, "warps": max(1, _ceil(rows, turn))}
    for warps in (8, 4, 2, 1):
        for n, slots in ((2, 3), (2, 2), (2, 1), (1, 1)):
            yield {"rows": min(n, limit), "slots": slots, "warps": warps}


@dataclass(frozen=True)
class GemvTwoConfig:
    """A matrix whose upper rows are of one format and whose lower rows of another, in one launch.

    Attributes:
        upper, lower: how either is multiplied; of the same dim, source and number of warps.
    """

    upper: GemvStreamConfig
    lower: GemvStreamConfig

    def __post_init__(self) -> None:
        for config in (self.upper, self.lower):
            if config.pairs or config.addend:
                raise ConfigRefused("gemv_stream_two: pairs or an addend; take plain products")
        shapes = [
            (config.dim, config.source, config.warps, config.chained) for config in (self.upper, self.lower)
        ]
        if shapes[0] != shapes[1]:
            raise ConfigRefused(
                f"gemv_stream_two: (dim, source, warps, chained) {shapes[0]} and {shapes[1]}; take the same"
            )

    def __str__(self) -> str:
        return f"{self.upper} and {self.lower}"

    @property
    def threads(self) -> int:
        return self.upper.threads

    @property
    def shared_bytes(self) -> int:
        return max(self.upper.shared_bytes, self.lower.shared_bytes)

    def grid(self, sms: int = 132) -> tuple[int, int, int]:
        """A block an SM."""
        return (max(2, sms), 1, 1)

    def split(self, od_upper: int, od_lower: int, sms: int = 132) -> int:
        """Blocks for the upper rows: in proportion to the bytes, and at least one for either."""
        blocks = self.grid(sms)[0]
        sizes = [
            od * config.units * config.unit_bytes
            for config, od in ((self.upper, od_upper), (self.lower, od_lower))
        ]
        return min(max(1, round(blocks * sizes[0] / sum(sizes))), blocks - 1)

    @classmethod
    def for_shapes(
        cls, upper: str, od_upper: int, lower: str, od_lower: int, dim: int, source: str,
        chained: bool = False, sms: int = 132,
    ) -> GemvTwoConfig:  # fmt: skip
        """A good config for od_upper rows of format `upper` above od_lower ones of `lower`. Raises
        ConfigRefused where there is none."""
        formats, ods = (upper, lower), (od_upper, od_lower)
        sizes = [od * BLOCKS[format].row_bytes(dim) for format, od in zip(formats, ods, strict=True)]
        blocks = max(2, sms)
        split = min(max(1, round(blocks * sizes[0] / sum(sizes))), blocks - 1)
        shares = [_ceil(od, n) for od, n in zip(ods, (split, blocks - split), strict=True)]
        refused: ConfigRefused | None = None
        for warps, cut in ((ONE_TURN_WARPS, None), (8, {"slots": 2}), (8, {"slots": 1}), (4, {"slots": 1})):
            halves = []
            try:
                for format, share in zip(formats, shares, strict=True):
                    # Two warps share a row where one would need too many registers for so many warps.
                    words = _ceil(dim // WEIGHTS, 32 // LANE_DOTS[format].lanes) * LANE_DOTS[format].words
                    team = 1 if words <= 40 or cut else 2
                    rows = 2 if cut else _ceil(share * team, warps)
                    halves.append(
                        GemvStreamConfig(
                            format,
                            dim,
                            source,
                            rows=rows,
                            warps=warps,
                            team=team,
                            chained=chained,
                            **(cut or {"slots": 1}),
                        )
                    )
                return cls(*halves)
            except ConfigRefused as error:
                refused = error
        raise refused
