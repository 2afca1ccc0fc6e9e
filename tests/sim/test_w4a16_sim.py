"""The W4A16 GEMM's own source in the simulator, on shapes that are ragged everywhere."""

import pytest

from minfer.cuda.trace import Op, Trace, check, shared_lines
from minfer.cuda.w4a16 import PAIR, W4A16Config
from tests.cuda.w4a16_cases import Product


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize(
    ("tile", "shape", "multiprocessors"),
    [
        ({"tokens": 64}, (100, 136, 3), 1),  # four tiles for one block, rings that wrap
        (
            {"tokens": 72, "ahead": False},
            (70, 72, 1),
            3,
        ),  # the last chunk of C overlaps; a block of weights only
        (
            {"tokens": 64, "slots": 3, "out": "f32", "store": "direct", "bias": True},
            (65, 131, 1),
            2,
        ),
        ({"tokens": 64, "stages": 8, "store": "direct"}, (3, 5, 3), 1),
        ({"tokens": 72, "gated": True}, (100, 144, 2), 1),  # 72 outputs: two tiles, one of 8
        ({"tokens": 64, "consumers": 3}, (70, 200, 2), 1),
        ({"tokens": 64, "split_k": 2}, (70, 136, 3), 8),  # halves of two blocks and one
        ({"tokens": 80, "stages": 8, "split_k": 2, "out": "f32", "store": "direct"}, (70, 131, 2), 4),
        ({"tokens": 128, "split_k": 4}, (130, 72, 5), 8),
        ({"tokens": 144, "split_k": 4, "out": "f32", "store": "direct"}, (130, 67, 4), 4),
    ],
    ids=str,
)
def test_product(format, tile, shape, multiprocessors):
    Product.random(W4A16Config(format, **tile), *shape).case(multiprocessors).run_simulated(seed=0)


@pytest.mark.parametrize(
    ("tile", "shape", "left", "multiprocessors"),
    [
        ({"tokens": 64}, (100, (256, 136), 2), "Q4_K", 1),  # 4 tiles, then 4: rings go on where they are
        ({"tokens": 72, "ahead": False}, (70, (64, 128), 1), "Q6_K", 3),  # tiles of the one, or of the other
        ({"tokens": 64, "slots": 3}, (65, (72, 256), 3), "Q6_K", 5),  # 2 tiles, then 4
        ({"tokens": 64, "stages": 8, "out": "f32", "store": "direct"}, (70, (131, 5), 3), "Q4_K", 2),
        ({"tokens": 64, "store": "direct"}, (3, (5, 7), 1), "Q6_K", 1),
        # The second matrix in tiles of more tokens, and of fewer.
        ({"tokens": 64, "other_tokens": 104}, (200, (128, 128), 1), "Q4_K", 3),
        ({"tokens": 104, "other_tokens": 64}, (200, (136, 128), 2), "Q6_K", 2),
        ({"tokens": 136, "narrow": True, "other_tokens": 152}, (200, (256, 256), 1), "Q4_K", 3),
        # A last column of 64 tokens, narrow: 4 tiles, then 2, then 2 narrow ones, the last round in reverse.
        ({"tokens": 136, "narrow": True}, (200, (256, 256), 1), "Q4_K", 3),
    ],
    ids=str,
)
def test_pair(tile, shape, left, multiprocessors):
    product = Product.random(W4A16Config(PAIR, **tile), *shape, left=left)
    product.case(multiprocessors).run_simulated(seed=0)


@pytest.mark.parametrize(
    ("format", "gated"), [("Q4_K", False), ("Q4_K", True), ("Q6_K", False), (PAIR, False)]
)
def test_traced_run_has_no_race_and_no_conflict(format, gated):
    rows = (128, 128) if format == PAIR else 128
    product, trace = Product.random(W4A16Config(format, 64, gated=gated), 64, rows, 3), Trace()
    product.case(1).run_simulated(trace=trace)
    assert check(trace) == []
    lines = shared_lines(trace)
    assert {line.degree for line in lines if line.op is Op.STMATRIX} == {1}
    if format == "Q4_K":  # Q6_K blocks start anywhere
        assert {line.degree for line in lines if line.place.function in ("fetch", "load_two_runs")} == {1}
