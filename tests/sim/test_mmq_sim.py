"""The MMQ family in the simulator: integers bit for bit, products, ragged shapes, exact buffers, no race."""

from dataclasses import replace

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.mmq import WEIGHT_TYPES, MmqConfig, large, mmq, reference, schedule
from minfer.cuda.trace import Op, Trace, check, shared_lines
from tests.cuda.mmq_cases import mmq_case, operands

#: The mechanisms of the shipped configs in tiles that a simulator runs in a second.
SMALL = {
    "r1": MmqConfig("r1", tokens_tile=32, rows_tile=32, warps=2, warps_tokens=2),
    "narrow": MmqConfig(tokens_tile=32, rows_tile=32, warps=2, warps_tokens=2),
    "wide": MmqConfig(tokens_tile=64, rows_tile=32, warps=2, warps_tokens=2, stages=3),
    "fast": MmqConfig(
        tokens_tile=32,
        rows_tile=64,
        kd=4,
        warps=2,
        warps_tokens=1,
        layout="padded",
        rescale="magic",
        unroll=2,
    ),
}
FOLDED = MmqConfig(
    "folded",
    "Q6_K",
    tokens_tile=32,
    rows_tile=32,
    kd=4,
    warps=2,
    warps_tokens=2,
    layout="padded",
    rescale="magic",
)


def small(name: str, weight_type: str, **fields) -> MmqConfig:
    return replace(SMALL[name], weight_type=weight_type, **fields)


def ragged_depth(config: MmqConfig) -> int:
    """Two super-blocks, or blocks of 32 that end within a k-tile."""
    return 512 if config.k_quant else 5 * 32


@pytest.mark.parametrize("kd", [4, 8])
@pytest.mark.parametrize("name", ["r1", "narrow"])
@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_integer_accumulators(weight_type, name, kd):
    config = small(name, weight_type, kd=kd).checking()
    mmq_case(config, 3, 19, ragged_depth(config)).run_simulated()


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_all_variants_give_the_same_bits(weight_type):
    results = []
    for name in SMALL:
        case = mmq_case(small(name, weight_type), 5, 21, ragged_depth(small(name, weight_type)))
        case.run_simulated(seed=1)
        results.append(case.results["out"])
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("kd", [4, 8])
@pytest.mark.parametrize("weight_type", ["Q4_K", "Q5_K", "Q4_1"])
def test_minima_on_the_tensor_cores(weight_type, kd):
    config = small("fast", weight_type, kd=kd, minimum="tensor")
    mmq_case(config, 19, 33, ragged_depth(config)).run_simulated()
    config = small("r1", weight_type, kd=kd, minimum="tensor")
    mmq_case(config, 3, 33, ragged_depth(config)).run_simulated()


@pytest.mark.parametrize(("nt", "od"), [(1, 1), (31, 32), (33, 31), (9, 97)])
@pytest.mark.parametrize("name", ["narrow", "fast"])
def test_ragged_tiles(name, nt, od):
    mmq_case(small(name, "Q4_K", kd=4), nt, od, 256).run_simulated()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q5_0"])
def test_any_thread_order_and_no_race(weight_type, name):
    config = small(name, weight_type)
    case, trace = mmq_case(config, 3, 17, 512 if config.k_quant else 320), Trace()
    case.run_simulated(seed=3, trace=trace)
    assert check(trace) == []


@pytest.mark.parametrize(("nt", "od"), [(1, 1), (33, 31), (9, 67)])
def test_folded_scales(nt, od):
    mmq_case(FOLDED.checking(), nt, od, 256).run_simulated()
    case, trace = mmq_case(FOLDED, nt, od, 512), Trace()
    case.run_simulated(seed=2, trace=trace)
    assert check(trace) == []
    lines = shared_lines(trace)
    assert {line.op for line in lines} >= {Op.LDMATRIX, Op.STORE_SHARED, Op.LOAD_SHARED}
    assert max(line.degree for line in lines) == 1


def test_folded_scales_at_their_extremes():
    """All weights -32, all scales -128, all activations 127: the largest sum that there is."""
    weights = np.zeros((1, 2 * 210), np.uint8)
    blocks = weights.reshape(2, 210)
    blocks[:, 192:208] = 128
    blocks[:, 208:210] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    activations, out = (
        reference.pad40(np.full((1, 512), 127), np.full((1, 16), 0.25)),
        np.zeros((1, 1), np.float32),
    )
    simulator.launch(mmq(FOLDED), FOLDED.grid(1, 1), weights, activations, out, 1, 1, 512)
    assert out[0, 0] == 512 * 127 * 4096 * 0.125


@pytest.mark.parametrize(
    ("sms", "nt", "od", "depth"),
    [
        (3, 33, 65, 512),
        (37, 40, 65, 512),
        (5, 40, 140, 512),
        (1, 5, 65, 256),
        (7, 64, 97, 256),
        (20, 1, 1, 512),
    ],
)
@pytest.mark.parametrize("config", [FOLDED, replace(SMALL["fast"], minimum="tensor")], ids=["Q6_K", "Q4_K"])
def test_stream_k(config, sms, nt, od, depth):
    """Whole waves and none, tiles of two parts and of many, of whole blocks, blocks with nothing to do."""
    case = mmq_case(replace(config, stream=True), nt, od, depth, sms)
    case.run_simulated()
    plain = mmq_case(config, nt, od, depth)
    plain.run_simulated()
    scale = np.abs(plain.results["out"]).max()
    np.testing.assert_allclose(case.results["out"], plain.results["out"], atol=1e-6 * scale)


def test_stream_k_of_one_block_a_multiprocessor():
    """The largest tile's shape of warps, small."""
    config = replace(large(), tokens_tile=32, rows_tile=64, warps=4)
    mmq_case(config, 40, 140, 512, sms=3).run_simulated()


def test_stream_k_does_not_race():
    case, trace = mmq_case(replace(FOLDED, stream=True), 33, 65, 512, sms=3), Trace()
    case.run_simulated(seed=4, trace=trace)
    assert check(trace) == []


@pytest.mark.parametrize(
    ("blocks", "tiles", "k_tiles"), [(264, 448, 28), (264, 112, 148), (6, 6, 4), (9, 1, 2)]
)
def test_every_k_tile_is_one_block_s(blocks, tiles, k_tiles):
    """The segments of all blocks are the product, once; a tile's beginning is the last of its blocks'."""
    taken = np.zeros((tiles, k_tiles), int)
    owner = {}
    for block in range(blocks):
        for index in range(tiles // blocks + 2):
            tile, begin, end = schedule.segment(index, block, blocks, tiles // blocks, tiles, k_tiles)
            if begin < end:
                taken[tile, begin:end] += 1
                owner.setdefault(tile, []).append((begin, block))
    assert (taken == 1).all()
    for parts in owner.values():
        order = [block for _, block in sorted(parts)]
        assert order == sorted(order, reverse=True)


def test_padding_frees_the_fragments_of_conflicts():
    """Activations and expanded weights: the plain layout's 40-byte rows conflict, the padded ones do not."""
    degrees = {}
    for layout in ("plain", "padded"):
        config = small("fast", "Q4_K", layout=layout)
        case, trace = mmq_case(config, 32, 64, 256), Trace()
        case.run_simulated(trace=trace)
        degrees[layout] = max(
            line.degree for line in shared_lines(trace) if line.op in (Op.LOAD_SHARED, Op.LDMATRIX)
        )
    assert degrees["padded"] == 1 < degrees["plain"]


def test_nothing_past_the_last_token_is_read():
    """Exactly as many bytes as there are tokens: one byte less is out of bounds, no byte less is not."""
    config = small("narrow", "Q4_K")
    weights, activations = operands("Q4_K", 3, 5, 256)
    out = np.zeros((3, 5), np.float32)
    simulator.launch(mmq(config), config.grid(3, 5), weights, activations.ravel(), out, 3, 5, 256)
    with pytest.raises(simulator.SimulatorError):
        simulator.launch(mmq(config), config.grid(3, 5), weights, activations.ravel()[:-1], out, 3, 5, 256)
