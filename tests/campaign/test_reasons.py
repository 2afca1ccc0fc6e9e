"""Explanations stand only where the figures bear them out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign import reasons
from minfer.campaign.probe_record import Bound, Comparison, ProbeRun, Side
from minfer.campaign.records import load_records
from minfer.campaign.wall_record import Bucket
from tests.campaign.walls import example_wall

RUN = next(record for record in load_records(kind="probe") if record.kernels and record.wall)


def facts(blocks: int, shared: int, registers: int = 80) -> dict:
    return {"k": {"blocks_sm": blocks, "shared_bytes": shared, "registers": registers, "threads": 256}}


def run(kernels: tuple[float, float], prefill: tuple[float, float], verdict: str, **rest) -> ProbeRun:
    """With steady samples of one kernel and of a prefill, in milliseconds."""

    def compared(ms: tuple[float, float]) -> Comparison:
        return Comparison.of("x", 1, [ms[0]] * 6, [ms[1]] * 6, [ms[0]] * 6)

    fields = {"kernels": [compared(kernels)], "wall": [compared(prefill)], "verdict": verdict}
    return replace(RUN, **(fields | rest))


def test_a_small_share_explains_what_stays_under_the_bar():
    told = reasons.small_share(run((5.0, 3.0), (100.0, 98.0), "REVERTED"))
    assert told == (
        "The kernels go from 5.00 to 3.00 ms (+67%), +2.04% of a prefill of 100 ms here: the low end "
        "of what was measured, +2.04%, misses the bar of +3%."
    )
    assert reasons.small_share(run((9.0, 3.0), (100.0, 98.0), "REVERTED")) == ""  # 6.4 % would have landed
    assert reasons.small_share(run((5.0, 3.0), (100.0, 98.0), "LANDED")) == ""
    assert reasons.small_share(run((3.0, 5.0), (100.0, 102.0), "REVERTED")) == ""  # the kernels lose


def test_what_is_only_bounded_says_of_what():
    made = run((9.0, 3.0), (100.0, 98.0), "MEAS-ONLY", wall=[], bound=Bound("quantize", 0.001, "wall.json"))
    assert reasons.only_bounded(made) == (
        "No route runs these kernels (+200%): quantize has 0.1% of the wall here, which bounds the gain."
    )
    assert reasons.only_bounded(replace(made, bound=None)) == ""


def test_blocks_that_stay_are_told_with_those_of_the_seeds_gpu():
    sides = {"baseline": Side("a", "", facts(3, 30720)), "variant": Side("b", "", facts(3, 55296))}
    told = reasons.same_blocks(run((9.0, 5.0), (100.0, 90.0), "LANDED", **sides))
    assert "3 before, 3 after" in told and "on a GB10: 3 and 1." in told
    assert reasons.same_blocks(run((9.0, 9.0), (100.0, 100.0), "null", **sides)) == told
    fewer = sides | {"variant": Side("b", "", facts(2, 55296))}
    assert reasons.same_blocks(run((9.0, 5.0), (100.0, 90.0), "LANDED", **fewer)) == ""
    assert reasons.same_blocks(run((5.0, 9.0), (90.0, 100.0), "REVERTED", **sides)) == ""
    small = sides | {"variant": Side("b", "", facts(3, 30720))}
    assert reasons.same_blocks(run((9.0, 5.0), (100.0, 90.0), "LANDED", **small)) == ""


@pytest.mark.parametrize(("shared", "told"), [(135168, True), (86016, False)])
def test_what_only_fits_here(shared, told):
    made = run((9.0, 5.0), (100.0, 90.0), "LANDED", variant=Side("b", "", facts(1, shared)))
    assert bool(reasons.fits_here(made)) is told


def mmq_wall(route: str, q4: float, q6: float):
    """A wall with one product of each format."""
    kernels = {"mmq [Q4_K raw]": q4, "mmq [Q6_K raw]": q6}
    bucket = Bucket("down", q4 + q6, 27, 100.0, 1e9, 5.5, kernels, 100.0)
    whole = q4 + q6 + 10.0
    return example_wall(device=RUN.device, route=route, buckets=[bucket], wall_ms=[whole], gap_ms=10.0)


def test_formats_that_go_different_ways():
    settings = RUN.settings | {"routes": [{"route": "mmq"}, {"route": "mmq_raw"}]}
    lost = run((9.0, 5.0), (100.0, 110.0), "REVERTED", settings=settings)
    walls = [mmq_wall("mmq", 60.0, 30.0), mmq_wall("mmq_raw", 50.0, 50.0)]
    told = reasons.by_format(lost, walls)
    assert told == (
        "Milliseconds of the products by format, from the walls of both routes: "
        "Q4_K 60.0 -> 50.0, Q6_K 30.0 -> 50.0. Q6_K's blocks of 210 bytes leave raw words unaligned."
    )
    assert reasons.by_format(lost, walls[:1]) == ""
    assert reasons.by_format(lost, [walls[0], mmq_wall("mmq_raw", 65.0, 35.0)]) == ""  # both lose
    won = run((9.0, 5.0), (110.0, 100.0), "LANDED", settings=settings)
    assert reasons.by_format(won, walls) == ""  # the walls say the opposite


def test_what_the_compared_format_does_not_save_is_the_others():
    settings = RUN.settings | {"routes": [{"route": "mmq_raw"}, {"route": "wide"}]}
    made = run((10.0, 8.0), (110.0, 90.0), "LANDED", settings=settings)
    assert reasons.other_format(made, [mmq_wall("mmq_raw", 50.0, 50.0)]).startswith(
        "The compared kernels, as if all matrices were Q4_K, save 2.0 of the 20.0 ms that the prefill gains"
    )
    assert reasons.other_format(made, [mmq_wall("mmq_raw", 50.0, 10.0)]) == ""  # 10 ms cannot save 18
    assert reasons.other_format(made, []) == ""
    own = run((30.0, 12.0), (110.0, 90.0), "LANDED", settings=settings)
    assert reasons.other_format(own, [mmq_wall("mmq_raw", 50.0, 50.0)]) == ""
