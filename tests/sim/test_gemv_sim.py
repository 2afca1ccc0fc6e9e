"""The decode GEMV in the simulator: every format, ragged rows, slices, rings, exact buffers."""

import numpy as np
import pytest

from minfer.cuda.block_dots import DOTS
from minfer.cuda.gemv import GemvConfig
from minfer.cuda.gemv_planes import repack_q6_k, slice_bytes
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.trace import Op, Trace, shared_lines
from tests.cuda.block_data import random_matrix
from tests.cuda.gemv_cases import gemv_case

K = ("Q4_K", "Q5_K", "Q6_K")
SMALL = tuple(f for f in DOTS if DOTS[f].weights == 32)
PLAIN = ("F32", "F16", "BF16")


@pytest.mark.parametrize("format", K)
@pytest.mark.parametrize(
    ("dim", "od", "rows", "slices", "slots"), [(256, 1, 1, 1, 2), (768, 5, 2, 1, 1), (1280, 3, 1, 2, 2)]
)
def test_k_formats(format, dim, od, rows, slices, slots):
    config = GemvConfig(format, dim, rows=rows, slices=slices, warps=1, slots=slots)
    gemv_case(config, od, grid=1).run_simulated()


@pytest.mark.parametrize(
    ("dim", "od", "rows", "slices", "slots"), [(256, 3, 2, 1, 2), (768, 5, 2, 1, 1), (1280, 3, 1, 2, 2)]
)
def test_planes(dim, od, rows, slices, slots):
    config = GemvConfig("Q6_K", dim, rows=rows, slices=slices, warps=2, slots=slots, layout="planes")
    assert config.row_bytes % 16 == 0 and config.row_bytes - dim // 256 * 210 < 16 * slices
    gemv_case(config, od, grid=1).run_simulated()


@pytest.mark.parametrize(("dim", "od", "slots"), [(256, 33, 2), (1024, 16, 1), (1792, 5, 1)])
def test_tensor_cores(dim, od, slots):
    config = GemvConfig("Q4_K", dim, rows=16, warps=2, slots=slots, dots="mma")
    gemv_case(config, od, grid=1).run_simulated()


@pytest.mark.parametrize("units", [2, 7, 12])
def test_rows_on_tensor_cores_meet_different_banks(units):
    """What a lane loads of weights and headers; records of 320 bytes meet in pairs."""
    trace = Trace()
    config = GemvConfig("Q4_K", units * 256, rows=16, warps=1, slots=1, dots="mma")
    gemv_case(config, 16, grid=1).run_simulated(trace=trace)
    lines = shared_lines(trace, Op.LOAD_SHARED)
    weights = [line for line in lines if line.wavefronts == 4 * -(-units // 4)]
    assert len(weights) >= 18 and not any(line.conflicts for line in weights)


def test_sixteen_bytes_a_lane_are_read_without_conflicts():
    """Weights in planes, and the activations of either layout; in blocks weights come word by word."""

    def loads(layout):
        trace = Trace()
        config = GemvConfig("Q6_K", 8 * 256, warps=1, layout=layout)
        gemv_case(config, 1, grid=1).run_simulated(trace=trace)
        return shared_lines(trace, Op.LOAD_SHARED)

    planes, blocks = loads("planes"), loads("blocks")
    for lines, count in ((planes, 7), (blocks, 4)):
        assert [line.conflicts for line in lines if line.width == 16] == [0] * count
    assert sum(line.wavefronts for line in planes) < 0.8 * sum(line.wavefronts for line in blocks)


@pytest.mark.parametrize("format", SMALL)
@pytest.mark.parametrize(("dim", "od", "rows", "slices"), [(32, 1, 1, 1), (96, 7, 8, 1), (1184, 3, 1, 2)])
def test_small_formats(format, dim, od, rows, slices):
    config = GemvConfig(format, dim, rows=rows, slices=slices, warps=2, slots=2)
    gemv_case(config, od, grid=2).run_simulated()


@pytest.mark.parametrize("format", PLAIN)
@pytest.mark.parametrize(("dim", "od", "rows"), [(8, 1, 1), (72, 5, 4)])
def test_plain_formats(format, dim, od, rows):
    gemv_case(GemvConfig(format, dim, rows=rows, warps=1), od, grid=2).run_simulated()


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K"])
def test_addend_and_uneven_blocks(format):
    config = GemvConfig(format, 512, rows=2, warps=2, slots=3, addend=True)
    gemv_case(config, 21, grid=4).run_simulated()


def test_addend_in_place():
    case = gemv_case(GemvConfig("Q8_0", 64, warps=1, addend=True), 6, grid=1)
    case.arguments["y"] = case.arguments["addend"]
    from minfer.cuda import simulator

    shared = case.arguments["addend"].copy()
    simulator.launch(
        case.kernel, (1, 1, 1), case.arguments["weights"], case.arguments["x"], shared, shared, 6
    )
    np.testing.assert_allclose(shared, case.expected["y"], atol=case.atol)


def test_more_blocks_than_rows():
    gemv_case(GemvConfig("Q4_0", 64, warps=2), 3, grid=5).run_simulated()


BULK = (
    (GemvConfig("Q4_K", 1280, slices=2, warps=2, pdl=True), 9, 1),
    (GemvConfig("Q4_K", 768, rows=2, slots=1, warps=2, pdl=True), 5, 2),
    (GemvConfig("Q6_K", 1280, slices=2, warps=1, slots=3, pdl=True), 5, 1),
    (GemvConfig("Q6_K", 768, rows=2, warps=2, pdl=True, addend=True), 13, 1),
    (GemvConfig("Q6_K", 1280, slices=2, warps=2, pdl=True, layout="planes"), 7, 1),
    (GemvConfig("Q8_0", 96, rows=8, warps=2, pdl=True), 7, 1),
    (GemvConfig("Q4_0", 64, warps=2, pdl=True), 3, 5),
    (GemvConfig("F16", 72, rows=4, warps=1, pdl=True), 5, 2),
)


@pytest.mark.parametrize(("config", "od", "grid"), BULK, ids=str)
def test_bulk_copies(config, od, grid):
    """Matrices that end within 16 bytes too; early and late copies in any order."""
    case = gemv_case(config, od, grid=grid)
    case.run_simulated()
    expected = case.results["y"]
    case.run_simulated(seed=3)
    np.testing.assert_array_equal(case.results["y"], expected)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_thread_order_gives_the_same(seed):
    """Arbitrary orders and early copies: a missing wait or warp barrier would show."""
    case = gemv_case(GemvConfig("Q6_K", 512, rows=1, warps=2, slots=2), 9, grid=1)
    case.run_simulated()
    expected = case.results["y"]
    case.run_simulated(seed=seed)
    np.testing.assert_array_equal(case.results["y"], expected)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": "Q3_K", "dim": 256}, "Q3_K"),
        ({"format": "Q4_K", "dim": 300}, "300"),
        ({"format": "Q4_K", "dim": 256, "rows": 3}, "rows=3"),
        ({"format": "Q6_K", "dim": 256, "rows": 16}, "rows=16"),
        ({"format": "Q4_K", "dim": 1024, "rows": 2, "slices": 2}, "2 slices"),
        ({"format": "Q4_K", "dim": 5 * 256, "slices": 4}, "last one empty"),
        ({"format": "Q4_K", "dim": 3584, "rows": 8, "warps": 8}, "the limit is 101376"),
        ({"format": "Q4_K", "dim": 3584, "rows": 8, "dots": "mma"}, "rows=8"),
        ({"format": "Q6_K", "dim": 3584, "rows": 16, "dots": "mma"}, "1 slices of Q6_K on tensor cores"),
        ({"format": "Q4_K", "dim": 3584, "dots": "wmma"}, "dots"),
    ],
)
def test_refusals_name_the_number(fields, says):
    with pytest.raises(ConfigRefused, match=says):
        GemvConfig(**fields)


def test_configs_for_shapes():
    """What the 7B's matrices get: all lanes at work, some 100 KB in flight."""
    c = GemvConfig.for_shape("Q4_K", 3584, 37888)
    assert (c.rows, c.slices, c.copy_bytes, c.slot_bytes) == (4, 1, 8064, 8064)
    assert c.shared_bytes == 4480 + c.warps * c.slots * 8064
    c = GemvConfig.for_shape("Q6_K", 18944, 3584)
    assert c.row_bytes == 15540 and c.slices > 1 and c.rows == 1
    for format, dot in DOTS.items():
        for units in (1, 2, 3, 7, 18, 28, 74):
            c = GemvConfig.for_shape(format, units * dot.weights, 1000)
            assert c.slice_blocks * (c.slices - 1) < units <= c.slice_blocks * c.slices


def test_overlapping_configs_for_shapes():
    """With pdl: large matrices take whole SMs and deal their rows out evenly, small ones are in flight as a
    whole beside the next kernel's."""
    for shape, taken in {
        ("Q4_K", 3584, 37888): (1, 4, 1, 12, 2),
        ("Q4_K", 18944, 3584): (1, 1, 2, 16, 2),
        ("Q6_K", 18944, 3584): (1, 1, 2, 12, 2),
        ("Q6_K", 3584, 152064): (1, 4, 1, 8, 2),
        ("Q4_K", 3584, 4608): (3, 2, 1, 6, 1),
        ("Q4_K", 3584, 3584): (2, 2, 1, 7, 1),
    }.items():
        c = GemvConfig.for_shape(*shape, pdl=True)
        assert (c.resident, c.rows, c.slices, c.warps, c.slots) == taken
    for format, dot in DOTS.items():
        for units in (1, 3, 28, 74):
            for od in (1, 500, 5000, 50000):
                for shared in (99 * 1024, 227 * 1024):
                    c = GemvConfig.for_shape(format, units * dot.weights, od, pdl=True, shared=shared)
                    assert c.resident * (c.shared_bytes + 1024) <= shared + 1024
    with pytest.raises(ConfigRefused, match="the limit is"):
        GemvConfig.for_shape("F32", 60000, 8, pdl=True)
    with pytest.raises(ConfigRefused, match="rows of 26112 are too long"):
        GemvConfig.for_shape("F16", 26112, 3584, addend=True, pdl=True, sms=188, shared=99 * 1024)


def test_repacking_moves_bytes_and_adds_none_but_the_ends():
    raw, _ = random_matrix("Q6_K", 3, 5 * 256)
    packed = repack_q6_k(raw, 2)
    assert packed.shape == (3, 2 * slice_bytes(2) + slice_bytes(1))
    for row, before in zip(packed, raw, strict=True):
        held = np.concatenate([row[:420], row[432:852], row[864:1074]])
        np.testing.assert_array_equal(np.sort(held), np.sort(before))
        assert not row[420:432].any() and not row[1074:].any()
    whole = repack_q6_k(raw, 5)
    np.testing.assert_array_equal(
        whole[:, 5 * 208 : 5 * 210], raw.reshape(3, 5, 210)[..., 208:].reshape(3, -1)
    )


def test_only_q6_k_is_repacked():
    with pytest.raises(ConfigRefused, match="Q4_K in planes; only Q6_K is repacked"):
        GemvConfig("Q4_K", 256, layout="planes")
    with pytest.raises(ConfigRefused, match="layout"):
        GemvConfig("Q6_K", 256, layout="rows")
