"""The Hopper GEMM's own source in the simulator, on shapes that are ragged everywhere."""

from dataclasses import replace

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.gemm_hopper import GemmHopperConfig, Heads, make_gemm_hopper
from minfer.cuda.simulator.lanes import current_lane
from minfer.cuda.simulator.semantics.table import SEMANTICS
from minfer.cuda.trace import Op, Trace, check, shared_lines
from tests.cuda.gemm_hopper_cases import check_bits, hopper_case, rope_case


@pytest.mark.parametrize(
    ("config", "shape", "multiprocessors"),
    [
        (GemmHopperConfig(64, 3), (100, 72, 72), 1),  # two tiles for one block, a ring that wraps
        (GemmHopperConfig(80, 2), (300, 168, 136), 2),  # the last chunk overlaps
        (GemmHopperConfig(224, 4), (130, 232, 8), 3),  # one k-tile only
        (GemmHopperConfig(72, 2), (70, 80, 72), 1),  # an odd number of groups of 8 columns
        (GemmHopperConfig(72, 2, out="f32"), (70, 136, 72), 1),
        (GemmHopperConfig(72, 2, out="f32", epilogue="add"), (70, 136, 72), 2),
        (GemmHopperConfig(128, 2, epilogue="swiglu"), (70, 72, 72), 1),  # a tile that reaches into the ups
        (GemmHopperConfig(144, 2, epilogue="swiglu"), (140, 80, 72), 2),
        (GemmHopperConfig(80, 2, tile_n=256), (300, 88, 200), 1),  # 128 rows a consumer
        (GemmHopperConfig(80, 2, "f32", "add", tile_n=256), (270, 72, 136), 1),
        (GemmHopperConfig(144, 2, epilogue="swiglu", tile_n=256), (140, 80, 72), 1),
        (GemmHopperConfig(72, 2, tile_n=192), (200, 80, 136), 1),  # three consumers
        (GemmHopperConfig(200, 2, tile_n=256), (300, 208, 200), 1),  # no producer, a ring that wraps
        (GemmHopperConfig(208, 3, epilogue="swiglu", tile_n=256, pdl=True), (140, 112, 72), 3),
        # Blocks of rows apart: one k-tile only, as few as they need, more; one tile a block and several
        (GemmHopperConfig(80, 3, tile_n=256, skew=3), (300, 88, 8), 1),
        (GemmHopperConfig(80, 3, tile_n=256, skew=3), (520, 168, 384), 2),
        (GemmHopperConfig(224, 3, tile_n=256, skew=3, pdl=True), (300, 240, 520), 3),
        (GemmHopperConfig(80, 2, tile_n=256, skew=1), (300, 168, 200), 1),
        (GemmHopperConfig(80, 4, tile_n=256, skew=2), (300, 168, 456), 1),
        (GemmHopperConfig(80, 2, "f32", "add", tile_n=256, skew=2), (270, 168, 328), 1),
        (GemmHopperConfig(144, 3, epilogue="swiglu", tile_n=256, skew=3), (270, 168, 504), 1),
        (
            GemmHopperConfig(64, 3, pdl=True),
            (140, 136, 264),
            2,
        ),  # three tiles a seat, more k-tiles than stages
        (GemmHopperConfig(64, 3, pdl=True), (100, 72, 72), 3),  # more seats than tiles
        (GemmHopperConfig(64, 3, split_k=True), (140, 136, 200), 12),  # halves of one and three k-tiles
        (GemmHopperConfig(72, 2, "f32", "add", split_k=True), (70, 80, 72), 4),
        (GemmHopperConfig(128, 2, epilogue="swiglu", split_k=True, pdl=True), (70, 72, 136), 7),
        # A consumer alone for none, one, two and three k-tiles of two, three, eight and nine
        (GemmHopperConfig(64, 3, split_k=True, split_lead=1), (140, 136, 128), 12),
        (GemmHopperConfig(64, 4, split_k=True, split_lead=6, pdl=True), (140, 136, 136), 13),
        (GemmHopperConfig(72, 2, "f32", "add", split_k=True, split_lead=1), (70, 80, 512), 4),
        (GemmHopperConfig(224, 4, split_k=True, split_lead=1, pdl=True), (130, 232, 568), 8),
        # and for nearly all, in a ring that wraps
        (GemmHopperConfig(64, 3, split_k=True, split_lead=9, pdl=True), (128, 72, 640), 5),
        (GemmHopperConfig(128, 2, epilogue="swiglu", split_k=True, split_lead=2), (70, 72, 392), 4),
    ],
    ids=str,
)
def test_product(config, shape, multiprocessors):
    hopper_case(config, *shape, multiprocessors).run_simulated(seed=0)


@pytest.mark.parametrize(
    "block_of", [lambda number: 7, lambda number: 3 - number // 2], ids=["one", "shared"]
)
def test_blocks_that_share_a_multiprocessor_take_other_seats(monkeypatch, block_of):
    """Where every multiprocessor gets one block, and where some get none."""
    where = lambda: block_of(current_lane("multiprocessor").block.number)  # noqa: E731
    monkeypatch.setitem(SEMANTICS, "multiprocessor", where)
    case = hopper_case(GemmHopperConfig(64, 2, pdl=True), 200, 136, 72, multiprocessors=5)
    for _ in range(2):
        case.run_simulated()


def test_seats_of_another_grid_or_of_another_launch_are_refused():
    case = hopper_case(GemmHopperConfig(64, 2, pdl=True), 70, 72, 72, multiprocessors=2)
    seats = case.arguments["seats"]
    case.arguments["seats"] = np.append(seats, np.uint32(2))
    with pytest.raises(ValueError, match=r"'seats' has 19 elements, a grid of 2 blocks takes 16 \+ 2"):
        case.run_simulated()
    case.arguments["seats"] = seats.copy()
    case.arguments["seats"][0] = 3  # both are taken
    with pytest.raises(ValueError, match="1 of the first 16 elements of argument 'seats' are not zero"):
        case.run_simulated()


def test_traced_run_has_no_race_and_no_conflict():
    config, (nt, od, depth) = GemmHopperConfig(64, 2), (128, 64, 192)
    a, b = np.ones((nt, depth), np.float16), np.ones((od, depth), np.float16)
    c = np.zeros((nt, od), np.float16)
    maps = [
        simulator.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    ]
    trace = Trace()
    simulator.launch(make_gemm_hopper(config), 1, *maps, nt, od, depth, 1, trace=trace)
    assert check(trace) == []
    assert (c == depth).all()
    assert {line.degree for line in shared_lines(trace) if line.op is Op.STMATRIX} == {1}


@pytest.mark.parametrize(
    "config",
    [GemmHopperConfig(64, 3, tile_n=256, skew=3), GemmHopperConfig(72, 3, "f32", "add", 256, skew=2)],
    ids=str,
)
def test_traced_blocks_of_rows_apart_have_no_race(config):
    trace = Trace()
    hopper_case(config, 512, 136, 512, multiprocessors=1).run_simulated(trace=trace)
    assert check(trace) == []


@pytest.mark.parametrize("lead", [0, 1])
def test_a_tile_of_two_blocks_may_be_rotated(lead):
    heads = Heads(2, 1, 64, interleaved=not lead, bias=True)
    config = GemmHopperConfig(64, 2, "f16", "rope", 128, heads, split_k=True, split_lead=lead)
    case = rope_case(config, 70, 136, multiprocessors=8)
    check_bits(case, lambda each: each.run_simulated(seed=0), multiprocessors=8)


@pytest.mark.parametrize("lead", [0, 1, 3])
def test_traced_exchange_has_no_conflict_and_no_race_in_shared_memory(lead):
    """Of the words that count what was handed over through global memory the checker knows nothing."""
    config = GemmHopperConfig(64, 2, split_k=True, split_lead=lead)
    case = hopper_case(config, 128, 64, 520, multiprocessors=2)
    case.kernel = replace(
        case.kernel, cluster=2, cooperative=False
    )  # a trace shows a cluster's blocks together
    trace = Trace()
    case.run_simulated(trace=trace)
    assert {finding.space for finding in check(trace)} <= {"global"}
    shared = [line for line in shared_lines(trace) if line.op in (Op.STMATRIX, Op.LOAD_SHARED)]
    assert {line.degree for line in shared} == {1}


@pytest.mark.parametrize(
    ("tile", "heads", "nt"),
    [
        ((64, 2), Heads(2, 1, 64, bias=True), 70),  # a head a tile
        ((64, 2), Heads(2, 2, 128, interleaved=True, bias=True), 20),  # half a head, neighbours
        ((192, 2), Heads(3, 1, 64, interleaved=True), 10),  # several heads, v ends within a tile
        ((192, 2, 192), Heads(2, 1, 128, bias=True), 170),  # one and a half heads; three consumers
        ((128, 2), Heads(1, 1, 256), 40),  # half of a head of four parts
    ],
    ids=str,
)
def test_queries_and_cache_rows(tile, heads, nt):
    tile_m, stages, *tile_n = tile
    config = GemmHopperConfig(tile_m, stages, "f16", "rope", *(tile_n or (128,)), heads)
    case = rope_case(config, nt, 72, multiprocessors=2)
    check_bits(case, lambda each: each.run_simulated(seed=0), multiprocessors=2)


@pytest.mark.parametrize("interleaved", [False, True])
def test_traced_rotation_has_no_race_and_no_conflict(interleaved):
    heads = Heads(1, 1, 128, interleaved, bias=True)
    case = rope_case(GemmHopperConfig(64, 2, epilogue="rope", heads=heads), 20, 64, multiprocessors=1)
    trace = Trace()
    case.run_simulated(trace=trace)
    assert check(trace) == []
    shared = [line for line in shared_lines(trace) if line.op in (Op.STMATRIX, Op.LOAD_SHARED)]
    assert {line.degree for line in shared} == {1}
