"""`minfer bench` and `minfer perplexity`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from minfer import cli
from minfer.campaign.record import Telemetry
from minfer.campaign.records import Sweep, load_records, read_record

ROOT = Path(__file__).parents[2]
TINY = ROOT / "data" / "qwen2-tiny.gguf"


def run(capsys, *argv):
    status = cli.main([*map(str, argv), "--backend", "host"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_bench_json_has_llama_bench_fields(capsys):
    status, out, err = run(capsys, "bench", "-m", TINY, "-p", "16", "-n", "4", "-r", "2", "--json")
    assert status == 0, err
    prefill, decode = json.loads(out)
    assert (prefill["n_prompt"], prefill["n_gen"]) == (16, 0)
    assert (decode["n_prompt"], decode["n_gen"]) == (0, 4)
    for row in (prefill, decode):
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2
        assert row["avg_ts"] == pytest.approx(sum(row["samples_ts"]) / 2)
        assert row["model_filename"] == TINY.name
        assert (row["backends"], row["regime"], row["sensors"]) == ("host", "burst", {})
        assert {"avg_ns", "stddev_ns", "stddev_ts", "model_size", "model_n_params", "type_k"} <= set(row)


def test_bench_text_names_the_tests(capsys):
    status, out, err = run(capsys, "bench", "-m", TINY, "-p", "8", "-p", "16", "-n", "2", "-r", "1")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["pp8", "pp16", "tg2"]
    assert all("tok/s" in line for line in out.splitlines())
    assert err.startswith("host")


def test_conditions_stand_beside_a_speed(capsys):
    from minfer.cli.measure import _conditions

    assert _conditions("burst", {}) == ""
    sensors = {"sm_mhz": 1410.4, "power_w": 690.2, "temperature_c": 61.0}
    assert _conditions("sustained", sensors) == "  (sustained, 1410 MHz, 690 W, 61 °C)"
    status, out, _ = run(capsys, "bench", "-m", TINY, "-p", "8", "-n", "0", "-r", "1", "--sustained", "0.01")
    assert status == 0 and out.strip().endswith("(sustained)")


@pytest.mark.parametrize(
    "argv", [["-p", "0", "-n", "0"], ["-p", "100000", "-n", "0"], ["-p", "-1"], ["-r", "0"]]
)
def test_bench_of_what_cannot_be_measured(capsys, argv):
    status, out, err = run(capsys, "bench", "-m", TINY, *argv)
    assert (status, out) == (2, "")
    assert err.startswith("minfer: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--variant", "tm64", "--route", "f16"], "--variant chooses route and weights itself"),
        (["--variant", "tm64", "-n", "4"], "leave out --backend, --route"),
        (["--variant", "tm64", "-p", "8", "-p", "16"], "--variant measures one prompt"),
        (["--variant", "tm64", "-p", "0"], "give -p once, above 0"),
        (["--variant", "tm65"], "variant 'tm65' is unknown: choose among f16, tm64"),
        (["--backend", "host", "--record"], "records are of a GPU's speeds"),
        (["--backend", "host", "--out", "records"], "(host: asked for)"),
    ],
)
def test_bench_refuses_options_that_do_not_go_together(capsys, argv, words):
    assert cli.main(["bench", "-m", str(TINY), *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1


def test_bench_prints_and_keeps_a_sweep(capsys, tmp_path, monkeypatch):
    result = next(r for r in load_records(kind="bench")).results[0]
    named = [
        replace(result, settings=result.settings | {"variant": name, "changes": ""})
        for name in ("f16", "tm64")
    ]
    made = Sweep(
        file="", date="2026-11-30T00:00:00+00:00", commit="c", device="NVIDIA H200", driver="d", command="",
        rest_s=0.06, results=named,
        telemetry=Telemetry(source="", samples=0, sm_mhz=[], power_w=[], temperature_c=[], limits=[]),
    )  # fmt: skip
    asked = []

    def sweep(*arguments):
        asked.append(arguments[:-1])
        return made

    monkeypatch.setattr("minfer.campaign.sweep.sweep", sweep)
    assert cli.main(["bench", "-m", "7b", "--variant", "tm64", "-r", "3", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert asked == [("7b", ["tm64"], 2048, 3)]
    assert [line.split()[0] for line in captured.out.splitlines()] == ["f16", "tm64"]
    (path,) = tmp_path.rglob("*.json")
    assert f"record: {path}" in captured.err and read_record(path).variants.keys() == {"f16", "tm64"}
    assert cli.main(["bench", "-m", "7b", "--variant", "all", "--json"]) == 0
    assert [row["settings"]["variant"] for row in json.loads(capsys.readouterr().out)] == ["f16", "tm64"]


def test_perplexity_json(capsys):
    argv = ("perplexity", "-m", TINY, "-f", ROOT / "README.md", "-c", "64", "--chunks", "3")
    status, out, err = run(capsys, *argv, "--json")
    assert status == 0, err
    result = json.loads(out)
    assert (result["n_ctx"], result["chunks"], result["scored_tokens"]) == (64, 3, 3 * 31)
    assert result["running"][-1] == result["perplexity"]
    assert all(value > 1 and math.isfinite(value) for value in result["running"])
    status, out, _ = run(capsys, *argv)
    assert out.splitlines()[2] == f"[3/3] {result['perplexity']:.4f}"


def test_perplexity_of_a_text_that_is_too_short(capsys, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("Hello")
    status, _, err = run(capsys, "perplexity", "-m", TINY, "-f", file)
    assert status == 2
    assert "1024" in err and err.count("\n") == 1
