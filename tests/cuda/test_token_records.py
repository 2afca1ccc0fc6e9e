"""How the token kernel's activations lie in shared memory: every byte once, and what lanes meet on banks."""

import pytest

from minfer.arithmetic.banks import shared_request
from minfer.cuda.token.records import record_layout


def runs_of(lane: int, lanes: int, six: bool) -> list[int]:
    """The runs of 16 that a lane of those that share a block takes, in the order of its loads."""
    parts = 4 // lanes
    found = []
    for part in range(lane * parts, lane * parts + parts):
        half, odd = part // 2, part % 2
        first, apart = (half * 8 + odd * 2, 4) if six else (part * 4, 2)
        found += [first + i // 2 * apart + i % 2 for i in range(4)]
    return found


@pytest.mark.parametrize("spread", [False, True])
def test_every_byte_once(spread):
    layout = record_layout(spread)
    places = [layout.run_at(run) + byte for run in range(16) for byte in range(16)]
    for run in range(16):
        scale = layout.scale_at(run)
        places += [at + byte for at in (scale, scale + layout.sum_behind) for byte in range(4)]
    assert sorted(places) == list(range(384))
    assert layout.pitch >= 384 and layout.pitch % 16 == 0


@pytest.mark.parametrize(
    ("spread", "lanes", "degree"), [(False, 4, 4), (False, 2, 8), (True, 4, 1), (True, 2, 1)]
)
@pytest.mark.parametrize("six", [False, True])
def test_banks_of_a_products_activations(spread, lanes, degree, six):
    """A warp's lanes load from 8 records, or 16: in natural order the records begin on one bank."""
    layout = record_layout(spread)

    def addresses(place, n):
        records = [(lane // lanes, runs_of(lane % lanes, lanes, six)[n]) for lane in range(32)]
        return [record * layout.pitch + place(run) for record, run in records]

    loads = range(len(runs_of(0, lanes, six)))
    assert {shared_request(addresses(layout.run_at, n), 16).degree for n in loads} == {degree}
    width, degree = 4, 32 // lanes
    if spread:
        width, degree = 8, 2 if six and lanes == 4 else 1
    assert {shared_request(addresses(layout.scale_at, n), width).degree for n in loads} == {degree}
