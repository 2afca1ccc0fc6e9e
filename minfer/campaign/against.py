"""Our kernels beside another library's: what a comparison found, and its record.

`minfer.campaign.contests` says what is compared, `minfer.campaign.side_by_side` measures it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from minfer.campaign.record import Record, checked_positive

SHAPES = {"q+k+v": (4608, 3584), "o": (3584, 3584), "gate+up": (37888, 3584), "down": (3584, 18944)}
"""Rows and columns of the matrices of Qwen2.5-7B's layers."""
ATTENTION = "attention"
HEADS, KV_HEADS, HEAD_DIM = 28, 4, 128
"""Of the attention that is compared, Qwen2.5-7B's."""
WEIGHTS = ("F16", "Q4_K", "Q6_K", "Q4_K+Q6_K", "")
"""Forms of a product's weights, in the order of tables; attention has none."""
KINDS = tuple(weights or ATTENTION for weights in WEIGHTS)
"""What can be compared, by the weights' form."""
REGIMES = ("burst", "sustained", "alone")
"""From rest; by turns within milliseconds under load, at a clock that both share; each side by itself for
tenths of a second, at its own clock, as a user's program runs."""


@dataclass(frozen=True)
class Comparison:
    """C[nt, od] = A[nt, id] B[od, id]^T with f16 results, or causal attention.

    Attributes:
        product: its name, in `SHAPES` or `ATTENTION`. nt, od, depth: sizes. Attention multiplies twice, each
            query with (nt + 1) / 2 rows on average: its depth is nt + 1, its od all heads' columns.
        config: our kernel's.
        ours_us, theirs_us: medians, microseconds. regime: one of `REGIMES`.
        ours_mhz, theirs_mhz: mean clock of the multiprocessors while it ran; None: nobody could tell.
        clock: who says so: "counters" (the multiprocessors' own) or "NVML", which a burst is over for.
        weights: what our kernel reads B as, the other one always as f16: one of `WEIGHTS`.
        peer: the other library's kernels; the fastest of its ways.
        ours_w, theirs_w: mean power of the board, W; None: nobody could tell, or they took turns.
    """

    product: str
    nt: int
    od: int
    depth: int
    config: str
    ours_us: float
    theirs_us: float
    regime: str
    ours_mhz: float | None = None
    theirs_mhz: float | None = None
    clock: str = "NVML"
    weights: str = "F16"
    peer: str = "cuBLAS"
    ours_w: float | None = None
    theirs_w: float | None = None

    @property
    def cycles(self) -> tuple[float, float] | None:
        """Clock cycles of a launch: (ours, the other's)."""
        late = self.clock == "NVML" and self.regime == "burst"
        if self.ours_mhz is None or self.theirs_mhz is None or late:
            return None
        return self.ours_us * self.ours_mhz, self.theirs_us * self.theirs_mhz

    @property
    def millijoules(self) -> tuple[float, float] | None:
        """Energy of a launch: (ours, the other's)."""
        if self.ours_w is None or self.theirs_w is None:
            return None
        return self.ours_us * self.ours_w / 1e3, self.theirs_us * self.theirs_w / 1e3

    @property
    def ratio(self) -> float:
        """How many times as fast as the other."""
        return self.theirs_us / self.ours_us

    @property
    def tflops(self) -> tuple[float, float]:
        """(ours, the other's)."""
        flop = 2.0 * self.nt * self.od * self.depth
        return flop / self.ours_us / 1e6, flop / self.theirs_us / 1e6

    @property
    def label(self) -> str:
        """The product, and the blocks that our kernel reads where it reads blocks."""
        return self.product if self.weights in ("F16", "") else f"{self.product} {self.weights}"

    def check_sizes(self) -> None:
        """Refuse (ValueError) weights or sizes that are not those of the product."""
        if (self.weights == "") != (self.product == ATTENTION):
            raise ValueError(f"weights: {self.weights!r} of {self.product}: attention alone has none")
        sizes = SHAPES.get(self.product, (HEADS * HEAD_DIM, self.nt + 1))
        if (self.od, self.depth) != sizes:
            raise ValueError(f"od, depth: {self.od}, {self.depth} of {self.product}, which has {sizes}")

    def __str__(self) -> str:
        ours, theirs = self.tflops
        what = f"{self.label:<12} {self.nt:>5} tokens {self.regime:<9}"
        text = f"{what} {ours:6.0f} TFLOPS, {self.peer} {theirs:4.0f}: {self.ratio:.3f}  ({self.config})"
        if self.cycles is not None:
            clocks = f"{self.ours_mhz:.0f} and {self.theirs_mhz:.0f} MHz"
            text += f"  {self.cycles[0] / 1e3:.1f} and {self.cycles[1] / 1e3:.1f} kilocycles at {clocks}"
        if self.millijoules is not None:
            powers = f"{self.ours_w:.0f} and {self.theirs_w:.0f} W"
            text += f"  {self.millijoules[0]:.1f} and {self.millijoules[1]:.1f} mJ at {powers}"
        return text

    def as_dict(self) -> dict:
        """The fields and the ratio, ready for JSON."""
        return asdict(self) | {"ratio": self.ratio}


MEASURED = ("ours_mhz", "theirs_mhz", "ours_w", "theirs_w")
"""Fields of a comparison that may be unknown."""
KNOWN = {
    "product": (*SHAPES, ATTENTION),
    "weights": WEIGHTS,
    "regime": REGIMES,
    "clock": ("counters", "NVML"),
}
"""What a comparison's fields may say."""


@dataclass(frozen=True, kw_only=True)
class Against(Record):
    """Our kernels beside another library's, interleaved in one process; `command` is its command line.

    Attributes:
        library: whose, with its version.
    """

    kind: ClassVar[str] = "against"

    command: str
    library: str
    results: list[Comparison]

    def check(self) -> None:
        super().check()
        if len({result.regime for result in self.results}) != 1:
            raise ValueError("results: a list of at least one product is needed, all of one regime")
        for place, result in enumerate(self.results):
            try:
                checked_positive(result, "nt", "od", "depth", "ours_us", "theirs_us")
                checked_positive(result, *(n for n in MEASURED if getattr(result, n) is not None))
                for name, allowed in KNOWN.items():
                    if (value := getattr(result, name)) not in allowed:
                        raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}")
                result.check_sizes()
            except ValueError as error:
                raise ValueError(f"results[{place}].{error}") from None
        rows = [(result.product, result.weights, result.nt) for result in self.results]
        if len(set(rows)) != len(rows):
            product, weights, nt = next(row for row in rows if rows.count(row) > 1)
            raise ValueError(f"results: {product} {weights} of {nt} tokens comes more than once")

    @property
    def regime(self) -> str:
        """One of `REGIMES`."""
        return self.results[0].regime

    @property
    def stem(self) -> str:
        """The beginning of its file's name."""
        return f"against-torch-{self.regime}"


def newest_comparisons(
    records: Iterable[Record], device: str, regime: str
) -> dict[tuple[int, str, str], tuple[Comparison, Against]]:
    """By tokens, weights and product the newest comparison on a device (a key of
    `minfer.arithmetic.devices`), and the record that it is of. records: oldest first."""
    found = {}
    for record in records:
        if isinstance(record, Against) and record.device_key == device and record.regime == regime:
            found |= {(row.nt, row.weights, row.product): (row, record) for row in record.results}
    order = [*SHAPES, ATTENTION]

    def place(key: tuple[int, str, str]) -> tuple[int, int, int]:
        nt, weights, product = key
        return nt, WEIGHTS.index(weights), order.index(product)

    return {key: found[key] for key in sorted(found, key=place)}


def geometric_mean(rows: Sequence[Comparison]) -> float:
    """Of the ratios."""
    return math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
