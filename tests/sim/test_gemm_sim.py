"""The GEMM family's own source, run in the simulator against NumPy on tiny ragged shapes."""

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.gemm import B_SOURCES, GemmConfig, make_gemm
from minfer.cuda.trace import Op, Trace, check, global_lines, shared_lines
from tests.cuda.gemm_block_cases import block_case

PROOF = GemmConfig()
#: One config of each mechanism; shapes are ragged in nt, od and the last k-tile.
FAMILY = [
    (PROOF, (1, 64, 8)),
    (PROOF, (70, 67, 72)),
    (GemmConfig(tile_m=128, layout="swizzled", stages=3), (65, 100, 136)),
    (GemmConfig(tile_m=128, tile_k=64), (7, 100, 72)),
    (GemmConfig(tile_n=128, tile_m=64, layout="plain", out="f16"), (129, 8, 40)),
    (GemmConfig(tile_m=256, warps=16), (3, 258, 40)),
    (GemmConfig(a_source="f32_mirror"), (66, 64, 72)),
    (GemmConfig(tile_m=256, warps=16, a_source="f32_mirror", out="f16"), (2, 256, 104)),
    (GemmConfig(tile_n=32, tile_m=32, warps=4, tile_k=16, stages=4), (33, 31, 56)),
    (GemmConfig(tile_n=32, tile_m=32, warps=4, stages=4), (5, 20, 8)),  # fewer k-tiles than stages
    (GemmConfig(tile_n=32, tile_m=32, warps=4, out="f16"), (33, 36, 40)),  # rows of whole 8 bytes
    (GemmConfig(tile_n=32, tile_m=32, warps=4, out="f16"), (33, 35, 40)),
]


def operands(config: GemmConfig, nt: int, od: int, depth: int):
    draw = np.random.default_rng([nt, od, depth])
    a = draw.standard_normal((nt, depth)).astype(np.dtype(config.sources[0].element))
    b = draw.standard_normal((od, depth)).astype(np.float16)
    c = np.full((nt, od), np.nan, {"f32": np.float32, "f16": np.float16}[config.out])
    return a, b, c


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """f16 operands, f32 accumulation (in float64 here: the bound below allows for the difference)."""
    return a.astype(np.float16).astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize(("config", "shape"), FAMILY, ids=lambda value: str(value).replace(" ", "-"))
def test_product(config, shape):
    a, b, c = operands(config, *shape)
    simulator.launch(make_gemm(config), config.grid(*shape[:2]), a, b, c, *shape, seed=0)
    expected = product(a, b)
    # f32 sums of about `depth` terms of size 1; an f16 result is rounded once more.
    bound = 1e-5 + (2.0**-11 * np.abs(expected) if config.out == "f16" else 0)
    assert np.isfinite(c).all()
    assert (np.abs(c - expected) <= bound).all()


@pytest.mark.parametrize(("pitch", "out"), [(72, "f32"), (72, "f16"), (71, "f32"), (70, "f16")])
def test_some_columns_of_a_wider_matrix(pitch, out):
    """Rows of C lie apart; what is beside the product keeps its NaN."""
    config = GemmConfig(tile_n=32, tile_m=32, warps=4, out=out, pitch=pitch)
    nt, od, depth, first = 33, 36, 40, 8
    a, b, _ = operands(config, nt, od, depth)
    whole = np.full((nt, pitch), np.nan, {"f32": np.float32, "f16": np.float16}[out])
    columns = whole.reshape(-1)[first:]
    simulator.launch(make_gemm(config), config.grid(nt, od), a, b, columns, nt, od, depth)
    expected = product(a, b)
    inside = whole[:, first : first + od]
    assert (np.abs(inside - expected) <= 1e-5 + 2.0**-11 * np.abs(expected)).all()
    assert np.isnan(whole[:, :first]).all() and np.isnan(whole[:, first + od :]).all()


def test_without_its_wait_the_result_is_wrong(monkeypatch):
    """A barrier alone does not order cp.async: dropping the wait must not go unnoticed."""
    from minfer.cuda import ptx

    monkeypatch.setattr(ptx, "cp_async_wait_group", lambda n: ptx.cp_async_commit)
    config = GemmConfig(tile_n=32, tile_m=32, warps=4)
    kernel = make_gemm.__wrapped__(config)
    a, b, c = operands(config, 32, 32, 64)
    with pytest.raises(simulator.SimulatorError):
        simulator.launch(kernel, config.grid(32, 32), a, b, c, 32, 32, 64)


@pytest.mark.parametrize(
    ("config", "ldmatrix"),
    [
        (PROOF, 1),
        (GemmConfig(layout="swizzled", stages=3), 1),
        (GemmConfig(layout="plain"), 4),
        (GemmConfig(tile_k=64, layout="plain"), 8),
        (GemmConfig(tile_k=64), 1),
        (GemmConfig(a_source="f32_mirror"), 1),
        (GemmConfig(tile_m=128, layout="swizzled", out="f16"), 1),
    ],
    ids=str,
)
def test_traced_run_has_the_conflicts_of_its_layout_and_no_race(config, ldmatrix):
    od = config.tile_m
    a, b, c = operands(config, 64, od, 128)
    trace = Trace()
    simulator.launch(make_gemm(config), 1, a, b, c, 64, od, 128, trace=trace)
    assert check(trace) == []
    lines = shared_lines(trace)
    assert {line.degree for line in lines if line.op is Op.LDMATRIX} == {ldmatrix}
    assert {line.degree for line in lines if line.op is Op.LOAD_SHARED} <= {1}
    # whole sectors in and out
    stores = [line for line in global_lines(trace) if line.op is Op.STORE_GLOBAL]
    assert all(line.efficiency == 1 for line in stores)
    reads = [line for line in global_lines(trace) if line.op is Op.COPY_READ]
    assert all(line.efficiency == 1 for line in reads)
    read_bytes = sum(line.requests * 512 for line in reads)
    assert read_bytes == a.nbytes + b.nbytes


@pytest.mark.parametrize("tile_k", [32, 64])
@pytest.mark.parametrize("name", B_SOURCES[1:])
def test_blocks_are_dequantized_on_their_way(name, tile_k):
    # an odd number of blocks a row puts every second row of 2-byte aligned blocks at an odd half-word
    config = GemmConfig(tile_n=32, tile_m=32, tile_k=tile_k, warps=4, b_source=name)
    block_case(config, 5, 39, 1 if name.endswith("K") else 3).run_simulated(seed=0)


def test_dequantizing_in_two_tiles_has_no_race():
    config = GemmConfig(tile_n=32, tile_m=32, warps=4, b_source="Q4_K", a_source="f32_mirror")
    a, b, c = np.ones((32, 256), np.float32), np.zeros((32, 144), np.uint8), np.ones((32, 32), np.float32)
    trace = Trace()
    simulator.launch(make_gemm(config), 1, a, b, c, 32, 32, 256, trace=trace)
    assert check(trace) == []
    assert (c == 0).all()
