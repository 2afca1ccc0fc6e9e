"""Charging milliseconds to classes of work, and what follows from the shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.arithmetic.reference import figure
from minfer.campaign import decomposition as dec
from minfer.campaign.decomposition import GAP, Span, exclusive
from minfer.campaign.observe import Observed
from minfer.campaign.records import RecordError, read_record, write_record
from minfer.cuda.kernel import Kernel
from tests.campaign.walls import SHARES, example_wall


def kernel(name: str) -> Kernel:
    return Kernel(name, "config", lambda: None, 32, 0, ())


def observed(name: str, bucket: str, gmac: float = 0.0, bits: float = 0.0) -> Observed:
    return Observed(kernel(name), (1, 1, 1), (), False, bucket, gmac, 1e6, bits)


def test_time_is_charged_once_where_launches_overlap():
    spans = [
        Span(0, 2_000_000),
        Span(1_000_000, 3_000_000),
        Span(1_500_000, 2_500_000),
        Span(5_000_000, 6_000_000),
    ]
    held = exclusive(spans)
    assert held == [2.0, 1.0, 0.0, 1.0]
    assert sum(held) == 4.0  # the union of the spans


def test_spans_out_of_order_are_refused():
    with pytest.raises(ValueError, match="in order of start"):
        exclusive([Span(5, 6), Span(1, 2)])
    with pytest.raises(ValueError, match="from 2 to 1 ns"):
        exclusive([Span(2, 1)])


def test_buckets_keep_the_order_of_their_first_launch_and_all_time():
    launches = [
        observed("rmsnorm", "add/rms/rope"),
        observed("gemm_f16", "gate+up", 10.0, 16.0),
        observed("mmq", "gate+up", 30.0, 4.5),
        observed("rmsnorm", "add/rms/rope"),
    ]
    found = dec.buckets(launches, [1.0, 2.0, 3.0, 4.0])
    assert [(b.name, b.ms, b.launches, b.gmac) for b in found] == [
        ("add/rms/rope", 5.0, 2, 0.0),
        ("gate+up", 5.0, 2, 40.0),
    ]
    assert found[1].weight_bits == pytest.approx((10 * 16 + 30 * 4.5) / 40)
    assert found[0].kernels == {"rmsnorm [config]": 5.0} and found[0].nbytes == 2e6
    with pytest.raises(ValueError, match="3 times for 4 launches"):
        dec.buckets(launches, [1.0, 2.0, 3.0])


def test_the_table_conserves_the_wall():
    wall = example_wall()
    rows = dec.rows(wall)
    assert [row["bucket"] for row in rows][-1] == GAP and len(rows) == len(SHARES) + 1
    assert sum(row["ms"] for row in rows) == pytest.approx(wall.ms) == 100.0
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert wall.conservation == pytest.approx(0.0) and wall.tok_s == pytest.approx(20_000)
    gate = rows[0]
    assert gate["bucket"] == "gate+up" and gate["us/GMAC"] == pytest.approx(37_800 / 7000)
    assert gate["TFLOPS"] == pytest.approx(2 * 7000 / 37.8) and gate["compute SOL"] == pytest.approx(
        0.3704, rel=1e-3
    )
    assert gate["GB/s"] == pytest.approx(1 / 0.0378) and gate["if free (tok/s)"] == pytest.approx(
        2000 / 0.0622
    )
    assert rows[-1]["us/GMAC"] is None and rows[-1]["GB/s"] is None


def test_a_wall_that_is_not_conserved_is_no_record(tmp_path):
    wall = example_wall(gap_ms=0.0)
    assert wall.conservation < -0.02
    with pytest.raises(RecordError, match=r"the wall clock is 100\.000 ms: -7\.2%, more than 2%"):
        write_record(wall, tmp_path, stem="wall")
    near = example_wall(wall_ms=[101.9])
    assert replace(read_record(write_record(near, tmp_path, stem="wall")), file="wall.json") == near


def test_int8_products_are_measured_by_the_int8_rate():
    launches = [observed("mmq", "gate+up", 30.0, 4.5), observed("gemm_f16", "gate+up", 10.0, 16.0)]
    (bucket,) = dec.buckets(launches, [0.5, 0.5])
    assert bucket.gmac == 40.0 and bucket.int8_gmac == 30.0
    wall = example_wall(
        buckets=[bucket], gap_ms=99.0, ceilings={"f16_tops": 100.0, "int8_tops": 200.0, "copy_gb_s": 1.0}
    )
    row = dec.rows(wall)[0]
    assert row["TFLOPS"] == pytest.approx(80.0)
    assert row["compute SOL"] == pytest.approx(2 * 10 / 100 + 2 * 30 / 200)
    assert dec.rows(replace(wall, ceilings={"f16_tops": 100.0}))[0]["compute SOL"] is None


def test_a_wall_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match=r"gap_ms: -1\.000: launches hold more time than their pass took"):
        example_wall(gap_ms=-1.0).check()
    (bucket, *rest) = example_wall().buckets
    with pytest.raises(ValueError, match=r"buckets\[0\]: 105% of what the tensor cores can reach"):
        example_wall(buckets=[replace(bucket, gmac=1.05 * 37.8e3 / 2), *rest]).check()
    with pytest.raises(ValueError, match=r"buckets\[0\]\.int8_gmac: 8000\.0 of 7000\.0 GMAC"):
        example_wall(buckets=[replace(bucket, int8_gmac=8000.0), *rest]).check()


def test_a_wall_tells_what_was_not_quiet():
    assert example_wall().unquiet(0.0) == []
    assert example_wall().unquiet(0.5) == ["the GPU was 50% busy before the measurements"]
    (found,) = example_wall(wall_ms=[100.0] * 5 + [150.0] * 2 + [100.0] * 4).unquiet()
    assert found == "2 of 11 rounds are outliers"


def test_the_seeds_target_follows_from_its_figures():
    """Seed 002: if the products took llama.cpp's 597 ms, the f16 path would reach about 2900 tok/s."""
    tokens, tok_s = figure("002", "wall.tokens").value, figure("002", "wall.tok_s").value
    ms = tokens / tok_s * 1e3
    scale = ms / 100
    buckets = [replace(b, ms=b.ms * scale, kernels={"k": b.ms * scale}) for b in example_wall().buckets]
    buckets = [replace(b, ms=0.0, kernels={"k": 0.0}) if b.name == "q+k+v" else b for b in buckets]
    products = sum(b.ms for b in buckets if b.name in ("gate+up", "down", "o"))
    gap = ms - sum(b.ms for b in buckets)
    wall = example_wall(tokens=tokens, wall_ms=[ms], buckets=buckets, gap_ms=gap)
    # The seed counts q+o 7.5 %: o 3.5 here, so add the other 4 % to what shrinks.
    extra = 0.04 * ms
    gmac = sum(b.gmac for b in buckets if b.name in ("gate+up", "down", "o", "q+k+v"))
    target = dec.what_if(wall, (figure("002", "gemm.ms.llamacpp").value - extra) * 1e3 / gmac)
    assert products + extra == pytest.approx(0.728 * ms)
    assert target == pytest.approx(figure("002", "prefill.target").value, rel=0.01)


def test_what_if():
    wall = example_wall()
    assert dec.what_if(wall) == pytest.approx(20_000)
    assert dec.what_if(wall, free=["convert"]) == pytest.approx(2000 / 0.094)
    assert dec.what_if(wall, free=[GAP]) == pytest.approx(2000 / 0.0928)
    assert dec.what_if(wall, factors={"FA": 0.5}) == pytest.approx(2000 / 0.0964)
    same = dec.products_us_per_gmac(wall)
    assert dec.what_if(wall, same) == pytest.approx(20_000)
    assert dec.what_if(wall, same / 2) == pytest.approx(2000 / (0.1 - 0.037))
    with pytest.raises(KeyError, match="has no bucket 'lm_head'; it has gate\\+up"):
        dec.what_if(wall, free=["lm_head"])
    with pytest.raises(ValueError, match="nothing would be left"):
        dec.what_if(wall, factors={"gate+up": -9})
    with pytest.raises(ValueError, match="not both"):
        dec.what_if(wall, 1.0, free=["down"])


def test_byte_widths_beside_the_measured_split():
    wall = example_wall()
    rows = {row["product"]: row for row in dec.byte_width_rows([wall])}
    assert list(rows) == ["gate+up", "down", "o", "q+k+v"]
    gate = rows["gate+up"]
    assert gate["bits a weight"] == 16 and gate["weights (GB)"] == pytest.approx(7000 / 2000 * 2)
    assert gate["reading alone (ms)"] == pytest.approx(7 / 4000 * 1e3)


def test_the_seeds_classes():
    shares = dec.class_shares(example_wall())
    assert shares["k+v"] == pytest.approx(0.25 * 0.052) and shares["quantize"] == 0.0
    assert sum(share for name, share in shares.items() if name != "GEMM") == pytest.approx(1.0)
    assert list(shares) == list(dec.CLASSES)
    assert shares["q+o"] == pytest.approx(0.035 + 0.75 * 0.052)
    assert shares["GEMM"] == pytest.approx(0.74) and shares["FA"] == pytest.approx(0.072)
