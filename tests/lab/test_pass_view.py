"""Convert and store_kv as notebook 4 shows them: counts from the trace, Little's law, records."""

from dataclasses import replace

import pytest

from minfer.arithmetic.devices import DEVICES, GB10, H200
from minfer.lab import pass_view
from minfer.lab.widgets import flight_explorer


@pytest.fixture(scope="module")
def convert():
    return [pass_view.trace_convert(vector, 2048) for vector in (1, 8)]


@pytest.fixture(scope="module")
def store_kv():
    return [pass_view.trace_store_kv(vector, nt=2) for vector in (1, 4)]


def test_the_kernels_are_exact_and_use_every_byte_once(convert, store_kv):
    for run in (*convert, *store_kv):
        assert run.exact
        for access, size in (("load", 4), ("store", 2)):
            mine = [row for row in run.rows if row["access"] == access]
            assert sum(row["bytes_used"] for row in mine) == run.elements * size


def test_requests_and_sectors(convert, store_kv):
    def counts(run):
        return [(row["access"], row["width"], row["sectors"] // row["requests"]) for row in run.rows]

    assert counts(convert[0]) == counts(store_kv[0]) == [("load", 4, 4), ("store", 2, 2)]
    assert counts(convert[1]) == [("load", 16, 32), ("load", 16, 32), ("store", 16, 16)]
    assert counts(store_kv[1]) == [("load", 16, 16), ("store", 8, 8)]
    table = pass_view.request_rows(convert)
    assert [row["used"] for row in table] == ["100%", "100%", "50%", "50%", "100%"]


def test_a_whole_pass_scales_the_trace(convert):
    scalar, vector = pass_view.full_size_rows(convert, 32_000_000)
    assert (scalar["requests (M)"], scalar["sectors (M)"]) == (2.0, 6.0)
    assert (vector["requests (M)"], vector["sectors (M)"]) == (0.38, 10.0)
    assert scalar["to and from DRAM (MB)"] == vector["to and from DRAM (MB)"] == 192.0


def test_a_warps_loads(convert, sound):
    rows = sound(pass_view.draw_warp_loads(*convert)).rows
    for vector, size in ((1, 128), (8, 1024)):
        mine = [row for row in rows if row["vector"] == vector]
        touched = {row["address"] + step for row in mine for step in range(row["width"])}
        assert touched == set(range(size))
    second = [row for row in rows if row["request"] == 1]
    assert [(row["lane"], row["address"]) for row in second[:3]] == [(0, 16), (1, 48), (2, 80)]


def test_bytes_in_flight_bound_the_pass():
    small, large = pass_view.flight(GB10, 1), pass_view.flight(H200, 1)
    assert (small.in_flight, large.in_flight) == (1536 * 4, 2048 * 4)
    assert small.pass_limit == GB10.bandwidth
    assert large.pass_limit == pytest.approx(1.5 * 8192 * 132 / 600e-9)
    assert pass_view.flight(H200, 8).pass_limit == H200.bandwidth
    assert pass_view.flight(H200, 1, 1200e-9).pass_limit == pytest.approx(large.pass_limit / 2)
    with pytest.raises(ValueError, match="latency of 0 s"):
        pass_view.flight(H200, 1, 0)


@pytest.mark.parametrize("key", DEVICES)
def test_every_device_has_a_picture(key, sound):
    rows = sound(pass_view.draw_flight(DEVICES[key])).rows
    assert [row["elements a thread"] for row in rows] == [1, 8]


def test_the_measured_pass_lies_below_its_bound(sound):
    record = pass_view.newest_record()
    for vector in (1, 8):
        rate = record.figure(f"convert 2048x18944 vector={vector}: GB/s") * 1e9
        assert rate <= pass_view.flight(H200, vector).pass_limit
    rows = sound(pass_view.draw_measured(record, H200)).rows
    assert len(rows) == len(pass_view.PASSES)


def test_fused_passes():
    figures = {
        f"{name}, 2048 tokens, {way}: us": us
        for name in pass_view.FUSED.values()
        for way, us in (("apart", 20.0), ("fused", 15.0))
    }
    known = replace(pass_view.newest_record(), measured={})
    records = [
        replace(known, file=date, date=date, measured={key: scale * us for key, us in figures.items()})
        for date, scale in (("2020-01-02T00:00Z", 1), ("2020-01-01T00:00Z", 2))
    ]
    rows = pass_view.fused_rows([known, *records])
    assert [row["passes"] for row in rows] == list(pass_view.FUSED)
    assert {(row["apart (us)"], row["fused (us)"], row["saved"]) for row in rows} == {(20.0, 15.0, 0.25)}
    assert pass_view.fused_rows([]) == []


def test_the_widget(sound):
    explorer = flight_explorer()
    assert "14.2 KiB an SM" in explorer.panel.value
    explorer.set(device="gb10", latency=1200)
    assert "4.4 KiB an SM" in explorer.panel.value
    sound(explorer.picture)
