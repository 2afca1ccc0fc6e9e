"""The Hopper GEMM's later steps: what arithmetic says of each, beside what was measured.

These steps were measured before anybody had predicted their time. The arithmetic is that of the steps before:
a k-tile takes its wgmmas' cycles or its bytes' way from L2, a tile some cycles besides (`choose` counts so),
a launch what a small kernel takes in a graph. Nothing is fitted to the steps. Power, latencies and the waits
of an exchange are left out: what is missing between the two columns is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minfer.arithmetic.devices import H200
from minfer.campaign.against import SHAPES
from minfer.campaign.records import Record
from minfer.cuda.gemm_hopper.choice import TILE_CYCLES, choose, k_tile_cycles
from minfer.cuda.gemm_hopper.config import GemmHopperConfig
from minfer.lab.figures import newest
from minfer.lab.hopper_ladder import L2_BYTES

LAUNCH_FIGURE = "graph of 300 kernels: device us a kernel"
"""What a dependent launch can hide, of a record."""


@dataclass(frozen=True)
class Plan:
    """A way to multiply.

    Attributes:
        config: of the tile. narrow: of a tile that two blocks share, k-tiles that each multiplies for its own
            half of the columns while the sums of the others change hands; the rest of the depth is halved.
    """

    config: GemmHopperConfig
    narrow: int = 0

    def k_tiles(self, depth: int) -> list[tuple[int, int]]:
        """(how many, columns of B) that a block multiplies of a tile, in their order; with a lead those for
        both consumers."""
        count = -(-depth // self.config.tile_k)
        if not self.config.split_k:
            return [(count, self.config.tile_m)]
        wide = -(-(count - self.narrow - self.alone) // 2), self.config.tile_m
        return [wide, (self.narrow, self.config.tile_m // 2)] if self.narrow else [wide]

    @property
    def alone(self) -> int:
        """K-tiles that a block multiplies for one consumer, with half of the tokens."""
        return 2 * self.config.split_lead

    def exchanged(self) -> int:
        """Bytes that a block hands on and takes: of f32 sums half a tile each."""
        return 4 * self.config.tile_n * self.config.tile_m if self.config.split_k else 0

    def cycles(self, nt: int, od: int, depth: int) -> float:
        """Of the block that has most to do."""
        rows, columns = self.config.tiles(nt, od)
        blocks = rows * columns * (1 + self.config.split_k)
        tile = sum(count * k_tile_cycles(self.config.tile_n, width) for count, width in self.k_tiles(depth))
        tile += self.alone * k_tile_cycles(self.config.tile_n // 2, self.config.tile_m)
        # Under the narrow k-tiles, or those of one consumer.
        exchange = 0 if self.narrow or self.alone else self.exchanged() / L2_BYTES
        return -(-blocks // H200.sms) * (tile + TILE_CYCLES + exchange)

    def moved(self, nt: int, od: int, depth: int) -> int:
        """Bytes of A, B and exchanged sums that all blocks move from and to L2."""
        rows, columns = self.config.tiles(nt, od)
        each = sum(
            count * (self.config.tile_n + width) * 2 * self.config.tile_k
            for count, width in self.k_tiles(depth)
        )
        each += self.alone * (self.config.tile_n // 2 + self.config.tile_m) * 2 * self.config.tile_k
        return rows * columns * (1 + self.config.split_k) * (each + self.exchanged())


@dataclass(frozen=True)
class Refinement:
    """A step at one product: `experiment` is its speed against the one before in single experiments; None:
    the GPU tests measure both."""

    step: str
    product: str
    nt: int
    before: Plan
    after: Plan
    experiment: float | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(nt, od, depth)"""
        return self.nt, *SHAPES[self.product]


def refinements() -> list[Refinement]:
    """Every step at the products that it is for."""
    plain, narrow = GemmHopperConfig(), GemmHopperConfig(64, 8, pdl=True)
    found = [
        Refinement("256 x 192", "gate+up", 2048, Plan(plain), Plan(GemmHopperConfig(192, 3, tile_n=256)))
    ]
    largest = Plan(GemmHopperConfig(224, 3, tile_n=256))
    found += [Refinement("256 x 224", name, 2048, Plan(plain), largest) for name in ("o", "down")]
    for nt, name in ((2048, "q+k+v"), (2048, "o"), (512, "q+k+v"), (512, "o")):
        seated = replace(choose(nt, *SHAPES[name]), skew=0)  # a later step
        found.append(
            Refinement("seats", name, nt, Plan(replace(seated, pdl=False)), Plan(replace(seated, pdl=True)))
        )
    for nt, name in ((128, "down"), (256, "down"), (128, "o")):
        found.append(Refinement("split-k", name, nt, Plan(narrow), Plan(choose(nt, *SHAPES[name]))))
    unshared = GemmHopperConfig(112, 6, pdl=True)
    shared = GemmHopperConfig(224, 4, pdl=True, split_k=True)
    for name, at_end, under in (("o", 0.86, 0.93), ("down", 1.0, 1.015)):
        alone = Plan(unshared)
        found.append(Refinement("pairs", name, 512, alone, Plan(shared), at_end))
        found.append(Refinement("narrow pairs", name, 512, alone, Plan(shared, 16), under))
    for nt, before in ((384, GemmHopperConfig(96, 6, pdl=True)), (512, unshared)):
        found.append(Refinement("lead", "down", nt, Plan(before), Plan(choose(nt, *SHAPES["down"]))))
    return found


def figure_name(nt: int, od: int, depth: int) -> str:
    """Of what the GPU tests measure: TFLOPS by config."""
    return f"Hopper GEMM TFLOPS at {nt}x{od}x{depth}"


def refined_rows(records: Sequence[Record], steps: Sequence[Refinement] | None = None) -> list[dict]:
    """A row a step: thousands of cycles and MB from L2, and the time at the boost clock, by arithmetic; the
    measured time; the speed against the tile before, predicted and measured. None: no record has it."""
    launches = newest(records, LAUNCH_FIGURE)
    gap = None if launches is None else launches.figure(LAUNCH_FIGURE)
    return [_row(step, records, gap) for step in (refinements() if steps is None else steps)]


def _row(step: Refinement, records: Sequence[Record], gap: float | None) -> dict:
    before, after = (_predicted_us(plan, step, gap) for plan in (step.before, step.after))
    was, took = _measured_us(step, records)
    measured = step.experiment or (None if None in (was, took) else was / took)
    return {
        "step": step.step,
        "product": step.product,
        "tokens": step.nt,
        "tile": f"{step.before.config.tile_n}x{step.before.config.tile_m} -> "
        f"{step.after.config.tile_n}x{step.after.config.tile_m}",
        "kcycles": step.after.cycles(*step.sizes) / 1e3,
        "MB": step.after.moved(*step.sizes) / 1e6,
        "MB before": step.before.moved(*step.sizes) / 1e6,
        "predicted (us)": after,
        "measured (us)": took,
        "predicted": None if None in (before, after) else before / after,
        "measured": measured,
    }


def _predicted_us(plan: Plan, step: Refinement, gap: float | None) -> float | None:
    """A launch that is no dependent one waits for the one before to end."""
    us = plan.cycles(*step.sizes) / H200.boost * 1e6
    if plan.config.pdl:
        return us
    return None if gap is None else us + gap


def _measured_us(step: Refinement, records: Sequence[Record]) -> tuple[float | None, float | None]:
    if step.experiment is not None:
        return None, None
    nt, od, depth = step.sizes
    name = figure_name(nt, od, depth)
    record = newest(records, name)
    speeds = {} if record is None else record.measured[name]
    found = (speeds.get(str(plan.config)) for plan in (step.before, step.after))
    was, took = (None if speed is None else 2 * nt * od * depth / speed / 1e6 for speed in found)
    return was, took
