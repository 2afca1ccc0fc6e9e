"""The Hopper ladders: configs and their differences, ledgers, figures found in records or missing."""

import linecache
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from minfer.campaign.against import SHAPES, Against, Comparison
from minfer.campaign.contests import BLOCKS
from minfer.campaign.peers import llamacpp
from minfer.campaign.records import GpuTests, load_records
from minfer.campaign.report import routes
from minfer.cuda.gemm import GemmConfig
from minfer.cuda.gemm_hopper import make_gemm_hopper
from minfer.cuda.w4a16 import PAIR, choose, choose_pair
from minfer.lab import hopper_ladder, hopper_view
from minfer.lab.figures import shown


@pytest.fixture(scope="module")
def records():
    return load_records(device="h200")


@pytest.fixture(scope="module")
def run(records):
    """Measure what one likes: the newest run of the GPU tests with these figures in place of its own."""
    kept = max((r for r in records if isinstance(r, GpuTests)), key=lambda r: r.date)
    return lambda **measured: [replace(kept, measured=measured)]


def test_every_step_changes_something():
    for steps in (hopper_ladder.gemm_ladder(), hopper_ladder.attention_ladder()):
        assert all(step.why for step in steps)
        assert all(before.config != step.config for before, step in pairwise(steps))
        assert all(row["change"] != "-" for row in hopper_ladder.change_rows(steps)[1:])


@pytest.mark.parametrize("name", ["torch.matmul", "torch.matmul, 30 in a row"])
def test_torchs_product_is_found_by_both_of_its_names(run, name):
    figures = run(**{hopper_view.LADDER_FIGURE: {"GemmConfig(...)": 400.0, name: 730.5}})
    assert hopper_view.cublas(figures) == 730.5
    assert hopper_view.cublas(run(**{hopper_view.LADDER_FIGURE: {"GemmConfig(...)": 400.0}})) is None


def test_attention_steps_change_one_field_each():
    rows = hopper_ladder.change_rows(hopper_ladder.attention_ladder())
    assert all(row["change"].count("->") == 1 for row in rows[1:])


def test_a_change_names_fields_or_families():
    config = GemmConfig()
    assert hopper_ladder.change(config, config) == "-"
    assert hopper_ladder.change(config, GemmConfig(tile_m=128)) == "tile_m 64 -> 128"
    other = hopper_ladder.attention_ladder()[0].config
    assert hopper_ladder.change(config, other) == "GemmConfig -> HopperAttentionConfig"


def test_the_ledger_of_instructions():
    rows = {row["step"]: row for row in hopper_ladder.ledger_rows(hopper_ladder.gemm_ladder())}
    assert rows["64 x 64"]["copied in (B a kFLOP)"] == pytest.approx(31.25)
    assert rows["64 x 64"]["products a MFLOP"] == pytest.approx(1e6 / 4096)
    # 8 warps of 32 x 16: (2 + 1) loads of 512 bytes each, for 2 x 64 x 64 x 16 FLOP.
    assert rows["64 x 64"]["read from shared (B a kFLOP)"] == pytest.approx(8 * 3 * 512 / 131.072)
    hopper = rows["wgmma + TMA"]
    assert hopper["FLOP an instruction"] == 2 * 64 * 256 * 16 and hopper["ldmatrix a MFLOP"] == 0
    assert hopper["read from shared (B a kFLOP)"] == min(
        r["read from shared (B a kFLOP)"] for r in rows.values()
    )


def test_the_ladder_in_the_records(records, sound):
    rows = {row["step"]: row for row in hopper_view.gemm_rows(records)}
    assert rows["64 x 64"]["TFLOPS"] < rows["k-step 64"]["TFLOPS"] < rows["three consumers"]["TFLOPS"] < 989
    assert rows["128 x 256"]["TFLOPS"] < rows["k-step 64"]["TFLOPS"]
    picture = sound(hopper_view.draw_gemm(records))
    assert all(row["TFLOPS"] for row in picture.rows)


def test_no_step_is_faster_than_arithmetic_allows(records):
    rows = {row["step"]: row for row in hopper_view.gemm_rows(records)}
    for row in rows.values():
        assert (row["TFLOPS"] or 0) < row["predicted, at most"] < 989
    assert rows["128 x 256"]["predicted, at most"] < rows["k-step 64"]["predicted, at most"]
    # 20.8 bytes a kFLOP keep the tensor cores busy; two waves of 264 tiles for 288 places idle 3 %.
    assert rows["three consumers"]["predicted, at most"] == pytest.approx(989.4 * 0.97, rel=1e-3)
    # 288 tiles in three waves.
    assert rows["wgmma + TMA"]["predicted, at most"] == pytest.approx(989.4 * 288 / 396, rel=1e-3)


def test_the_order_of_tiles_is_worth_what_the_schedule_says(records):
    rows = {row["tokens"]: row for row in hopper_view.order_rows(records)}
    assert rows[512]["predicted"] == 1.0
    assert rows[2048]["predicted"] == pytest.approx(41.8 / 33.8)
    for row in rows.values():
        assert row["strided"] <= row["LPT"] <= 1.0
    assert rows[2048]["measured"] > rows[8192]["measured"] > 1.0


def test_attention_by_length_is_the_last_step(records):
    rows = hopper_view.length_rows(records)
    assert [(row["tokens"], row["regime"]) for row in rows] == [
        (nt, regime) for nt in (512, 2048, 8192) for regime in ("burst", "sustained")
    ]
    assert {row["step"] for row in rows} == {"Q in registers"}
    assert all(row["of cuDNN (bench)"] > 1 for row in rows)
    assert hopper_view.length_rows([]) == []


def test_attention_in_the_records(records, sound):
    rows = {row["step"]: row for row in hopper_view.attention_rows(records)}
    assert rows["before P5"]["ms"] > rows["FAP2"]["ms"] > rows["FAP2, TKV=64"]["ms"]
    sound(hopper_view.draw_attention(records))


def test_measured_steps_stand_against_cudnn(run, sound):
    names = ("no overlap", "overlap", "cuDNN", "cuDNN, grouped")
    times = (0.08, 0.05, 0.1, 0.09)
    found = run(**{f"attention 2048 tokens, {n}, burst: ms": ms for n, ms in zip(names, times, strict=True)})
    rows = hopper_view.attention_rows(found)
    assert [row["step"] for row in rows] == ["no overlap", "overlap"]
    assert rows[1]["of cuDNN"] == pytest.approx(0.09 / 0.05)
    sound(hopper_view.draw_attention(found))


def against(*results: Comparison, date: str = "2026-11-30T01:00:00+00:00") -> Against:
    stamp = {"file": "a.json", "date": date, "commit": "abc", "device": "NVIDIA H200", "driver": "580"}
    return Against(**stamp, command="minfer bench --against torch", library="torch", results=list(results))


def compared(product: str, nt: int, ours: float, theirs: float = 100.0) -> Comparison:
    return Comparison(product, nt, *SHAPES[product], "a tile", ours, theirs, "burst")


def test_products_against_cublas(sound):
    old = against(compared("down", 2048, 110.0), compared("q+k+v", 512, 100.0))
    records = [old, against(compared("down", 2048, 90.0), date="2026-11-30T02:00:00+00:00")]
    rows = hopper_view.product_rows(records)
    assert [(row["product"], row["tokens"]) for row in rows] == [
        ("q+k+v", 512), ("down", 2048), ("geometric mean", None),
    ]  # fmt: skip
    assert rows[1]["of cuBLAS"] == pytest.approx(100 / 90)
    assert rows[2]["of cuBLAS"] == pytest.approx((100 / 90) ** 0.5)
    assert hopper_view.product_rows(records, "sustained") == []
    assert len(sound(hopper_view.draw_products(records)).rows) == 3


def test_blocks_beside_cublas(records):
    rows = hopper_view.block_rows(records)
    assert {(row["format"], row["product"]) for row in rows} == set(BLOCKS)
    for row in rows:
        od, depth = SHAPES[row["product"]]
        if row["format"] == PAIR:
            config = choose_pair(row["tokens"], (od - 512, 512), depth)
        else:
            config = choose(row["format"], row["tokens"], od, depth)
        assert row["tile"] == str(config)
        assert row["TFLOPS"] is None or row["TFLOPS"] < 989
        assert 0.5 < row["sustained"] < 1.3
    long = [row["of cuBLAS"] for row in rows if row["tokens"] >= 2048 and row["of cuBLAS"] is not None]
    assert len(long) >= 10
    assert statistics.geometric_mean(long) > 0.97


def test_missing_figures_are_told(sound):
    for draw in (hopper_view.draw_gemm, hopper_view.draw_products, hopper_view.draw_attention):
        assert "No record holds" in sound(draw([])).alt
    assert hopper_view.block_rows([]) == []
    assert repr(shown([], "W4A16's speeds")) == "No record holds W4A16's speeds."


def test_prefills(records):
    rows = hopper_view.prefill_rows(routes(records), llamacpp())
    assert {"f16", "f16-wgmma"} <= {row["route"] for row in rows}
    assert [row["tok/s"] for row in rows] == sorted(row["tok/s"] for row in rows)


def test_lost_probes_say_what_was_expected():
    assert all({"probe", "of", "idea", "outcome", "why"} == row.keys() for row in hopper_ladder.LOST)


def test_the_kernel_view_starts_at_the_consumers_call(monkeypatch):
    monkeypatch.setattr(hopper_ladder, "KernelView", lambda factory, configs, line, arch: (configs, line))
    configs, line = hopper_ladder.hopper_kernel_view()
    code = make_gemm_hopper(next(iter(configs.values()))).function.__code__
    assert "consume(" in linecache.getline(code.co_filename, line) and line > code.co_firstlineno
