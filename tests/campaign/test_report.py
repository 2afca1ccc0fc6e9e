"""README's measured tables follow from the records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign import report
from minfer.campaign.against import Against, Comparison
from minfer.campaign.document import campaign_table
from minfer.campaign.peers import llamacpp
from minfer.campaign.records import GpuTests, RecordError, load_records
from minfer.engine.cuda.routes import ROUTES

RECORDS = load_records()


def test_the_readme_is_what_the_records_give():
    text = report.README.read_text(encoding="utf-8")
    assert report.regenerate(text, RECORDS) == text, "run minfer report --readme"


def test_every_figure_of_the_table_is_a_records():
    benches = report.routes(RECORDS)
    lasting = report.routes(RECORDS, regime="sustained")
    lines = report.speed_table(RECORDS, llamacpp()).splitlines()
    assert lines[0].startswith("|  | prefill multiplies | memory | prefill, burst |")
    for line, (route, bench) in zip(lines[2:], benches.items(), strict=False):
        prefill, decode = bench.result("pp2048"), bench.result("tg128")
        assert f"`{route}` | {report.WHAT[route]} | {prefill.settings.get('memory', '')} |" in line
        assert f" {prefill.avg_ts:,.0f} ± " in line and f" {decode.avg_ts:,.1f} ± " in line
        if route in lasting:
            assert f" {lasting[route].result('pp2048').avg_ts:,.0f} ± " in line
            assert f" {lasting[route].result('tg128').avg_ts:,.1f} ± " in line
    assert "| llama.cpp | the blocks |  | 10,092 ± 360 |  | 281.3 ± 1.7 |  |" in lines
    assert any("**burst**" in line for line in lines)


def test_a_sustained_bench_is_no_burst():
    old = next(iter(report.routes(RECORDS).values()))
    sensors = {"sm_mhz": 1410.0, "power_w": 690.0}
    lasting = [replace(r, regime="sustained", sensors=sensors, avg_ts=20_000.0) for r in old.results]
    long = replace(old, date="2027-01-01T00:00:00+00:00", results=lasting)
    assert report.routes([old, long]) == {old.route: old}
    assert report.routes([old, long], regime="sustained") == {old.route: long}
    assert long.stem == f"{old.stem}-sustained" == f"bench-{old.model}-{old.route}-sustained"
    table = report.speed_table([old, long], llamacpp())
    assert "| 20,000 ± " in table and "(prefill: 1,410 MHz at 690 W)" in table


def test_every_route_is_described():
    assert report.WHAT.keys() == set(ROUTES) - {"auto"}


def test_the_newest_bench_of_a_route_counts():
    old = next(iter(report.routes(RECORDS).values()))
    route = old.result("pp2048").settings["route"]
    new = replace(old, date="2027-01-01T00:00:00+00:00", commit="new")
    assert report.routes([old, new])[route] is new


def test_launches_come_from_the_newest_run_that_measured_them():
    runs = [record for record in RECORDS if isinstance(record, GpuTests)]
    holding = [run for run in runs if run.measured.keys() >= report.LAUNCHES.keys()]
    full = holding[-1]
    table = report.launch_table(RECORDS)
    for name, what in report.LAUNCHES.items():
        assert f"| {what} | {full.measured[name]:.3g} |" in table
    assert full.origin in table
    with pytest.raises(RecordError, match="no gpu-tests record of h200 holds launch us"):
        report.launch_table([run for run in runs if run not in holding])


def test_what_is_folded_is_still_there():
    whole = campaign_table(RECORDS, report.DEVICE)
    text = report.campaign_text(RECORDS)
    shown, folded = text.split("<details>")
    for row in whole.rows:
        probe, question, _, ours, _, kernels, why = (cell.replace("|", "\\|") for cell in row)
        assert (
            f"| {probe} | {question} |" in shown and f" {ours} |" in shown and (not why or why not in shown)
        )
        assert f"| {probe} | {kernels} | {why} |" in folded
    assert whole.note in folded.split("</details>")[1]
    walls = report.walls_text(RECORDS)
    assert walls.startswith("<details>\n<summary>GEMMs take ") and walls.endswith("\n\n</details>")
    assert "| us a GMAC of the products |" in walls
    assert report.walls_text([]) == "No wall of a prefill on h200 is recorded."


def test_tables_without_their_records_are_refused():
    with pytest.raises(RecordError, match=r"no bench of qwen2\.5-7b, synthetic, seed 0 on h200 among 0"):
        report.speed_table([], llamacpp())
    with pytest.raises(RecordError, match=r"\.json: device: NVIDIA H200, but llama\.cpp ran on a GB10"):
        report.speed_table(RECORDS, replace(llamacpp(), device="a GB10"))


OPEN = "<!-- measured: speed -->\n"
REST = "".join(f"<!-- measured: {name} -->\n" for name in report.TABLES if name != "speed")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no markers", "markers for nothing; tables: speed, launches, products, campaign, walls"),
        ("<!-- measured: speed -->\n<!-- /measured -->\n", "markers for speed; tables"),
        (f"{OPEN}{REST}", "of speed is not closed"),
        (
            f"{OPEN}{REST}<!-- /measured -->\n",
            "of speed is not closed",
        ),
    ],
)
def test_markers_that_do_not_fit(text, words):
    with pytest.raises(RecordError, match=words):
        report.regenerate(text, RECORDS)


def test_the_command(tmp_path, monkeypatch, capsys):
    pairs = [f"<!-- measured: {name} -->\nold\n<!-- /measured -->\n" for name in report.TABLES]
    stale = "# x\n" + "y\n".join(pairs)
    path = tmp_path / "README.md"
    path.write_text(stale)
    monkeypatch.setattr(report, "README", path)
    assert report.main(["--check"]) == 1 and path.read_text() == stale
    assert "README.md differs from the records" in capsys.readouterr().err
    assert report.main([]) == 0
    text = path.read_text()
    assert text.startswith("# x\n") and "\ny\n" in text and "\nold\n" not in text and "| llama.cpp |" in text
    assert report.main(["--check"]) == 0


def test_products_are_compared_with_cublas():
    with pytest.raises(RecordError, match="no comparison with cuBLAS on h200 among 0 records"):
        report.products_table([])
    stamp = {"file": "", "date": "2026-11-30T01:00:00+00:00", "commit": "abc", "device": "NVIDIA H200"}
    row = Comparison("o", 2048, 3584, 3584, "a tile", 50.0, 60.0, "burst")
    record = Against(**stamp, driver="580", command="a", library="torch", results=[row])
    table = report.products_table([record])
    assert "| o | 1.200 |  |" in table and "2,048 tokens, burst" in table
    assert table.endswith("commit abc, `a`.")
    blocks = replace(row, weights="Q4_K", nt=512)
    table = report.products_table([record, replace(record, results=[blocks])])
    assert "| o Q4_K | 1.200 |  |  |  |" in table and "| o |  |  | 1.200 |  |" in table
    assert "as fast as cuBLAS, both" in table
    seen = replace(row, product="attention", depth=2049, weights="", peer="cuDNN, grouped")
    table = report.products_table([record, replace(record, results=[seen])])
    assert "| attention | 1.200 |  |" in table and "as fast as cuBLAS or cuDNN, both" in table


def test_products_each_side_alone():
    stamp = {"file": "", "date": "2026-11-30T01:00:00+00:00", "commit": "abc", "device": "NVIDIA H200"}
    row = Comparison("o", 2048, 3584, 3584, "a tile", 50.0, 60.0, "burst")
    alone = replace(row, regime="alone", ours_us=48.0, ours_w=700.0, theirs_w=690.0)
    records = [
        Against(**stamp, driver="580", command="a", library="torch", results=[each]) for each in (row, alone)
    ]
    table = report.products_table(records)
    assert "2,048 tokens, sustained | 2,048 tokens, alone |" in table and "| o | 1.200 |  | 1.250 |" in table
    assert "(690 to 700 W): times as fast 1.250 and of the energy 0.812, geometric means." in table
    hidden = replace(alone, nt=512, ours_us=600.0)  # no row of the table: it has no burst
    assert report.products_table([records[0], replace(records[1], results=[alone, hidden])]) == table
    unknown = replace(records[1], results=[replace(alone, ours_w=None)])
    assert report.products_table([records[0], unknown]).endswith("at its own clock.")


def test_a_bench_of_other_tests_takes_nobodys_place():
    old = next(iter(report.routes(RECORDS).values()))
    for results in ([old.result("tg128")], [old.result("pp2048")]):
        new = replace(old, date="2027-01-01T00:00:00+00:00", results=results)
        assert report.routes([*RECORDS, new]) == report.routes(RECORDS)
        assert report.speed_table([*RECORDS, new], llamacpp()) == report.speed_table(RECORDS, llamacpp())
