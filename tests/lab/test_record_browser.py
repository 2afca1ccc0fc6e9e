"""The record browser: filters, one run in full, and pictures of samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign.discovery import shipped
from minfer.campaign.probe import Prediction, Probe
from minfer.lab import record_browser as browser
from tests.campaign.fake_gpu import FakeGpu, Routed, ScaleConfig, install, run_prefilled

PROBES = shipped()
NAMES = [probe.name for probe in PROBES]


@pytest.fixture(scope="module")
def runs():
    """One run of three probes: ks64 landed, tm256 reverted, af32 with a failed gate."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        gpu = install(patch, FakeGpu((1.0, 1.0004, 0.9997)))
        for name, config in (
            ("ks64", ScaleConfig(0.5)),
            ("tm256", ScaleConfig(4.0)),
            ("af32", ScaleConfig(1.0, wrong=True)),
        ):
            probe = Probe(
                name=name, title="t", hypothesis="h", prediction=Prediction(None, "p"),
                workload=Routed(), baseline=ScaleConfig(2.0), variant=config,
            )  # fmt: skip
            found.append(run_prefilled(patch, probe, gpu))
    return found


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (browser.ALL, NAMES),
        ("LANDED", ["ks64"]),
        ("REVERTED", ["tm256", "af32"]),
        ("null", []),
        (browser.DIFFERS, ["ks64"]),
        (browser.MISSING, [name for name in NAMES if name not in ("ks64", "tm256", "af32")]),
    ],
)
def test_filters(runs, shown, names):
    assert [row["probe"] for row in browser.verdict_rows(PROBES, runs, "h200", shown)] == names


def test_another_device_has_no_runs(runs):
    assert {row["ours"] for row in browser.verdict_rows(PROBES, runs, "gb10")} == {browser.MISSING}


def test_reasons_are_those_of_the_newest_run(runs):
    (row,) = browser.reason_rows(PROBES, runs, "h200")
    assert row == {"probe": "ks64", "seed": "REVERTED", "ours": "LANDED", "why": "not determined"}
    later = replace(runs[0], date="2999-01-01T00:00:00+00:00", reason="three blocks before and after")
    (row,) = browser.reason_rows(PROBES, [*runs, later], "h200")
    assert row["why"] == "three blocks before and after"


def test_what_there_is_not(runs):
    with pytest.raises(ValueError, match="no filter 'x'"):
        browser.verdict_rows(PROBES, runs, "h200", "x")
    with pytest.raises(KeyError, match=r"no probe 'x': there are p5\.0"):
        browser.browse(PROBES, runs, "h200", browser.ALL, "x")


def test_a_run_in_full(runs, sound):
    found = browser.browse(PROBES, runs, "h200", browser.ALL, "ks64")
    assert found.run is runs[0]
    html = browser.browsed_html(found)
    for words in ("<b>REVERTED</b> (", "<b>LANDED</b> (", "parity passed", ">predicted<",
                  "kernels 8.00 -&gt; 2.00 ms", "its baseline, KS=32: 2,345 tok/s"):  # fmt: skip
        assert words in html
    picture = sound(browser.draw_run(found))
    assert len(picture.rows) == 3 * 3 * 9 and {row["side"] for row in picture.rows} == {
        "2.0 ms", "0.5 ms", "2.0 ms again"
    }  # fmt: skip


@pytest.mark.parametrize(("name", "words"), [("af32", "FAILED"), ("mmq-raw", "not run on this device")])
def test_runs_without_samples(runs, name, words):
    found = browser.browse(PROBES, runs, "h200", browser.ALL, name)
    assert words in browser.browsed_html(found)
    assert browser.draw_run(found).rows == [] and browser.draw_run(found).png()


def test_every_gain_with_its_verdict(runs, sound):
    rows = sound(browser.draw_verdicts(PROBES, runs, "h200")).rows
    assert [(row["probe"], row["ours"], row["seed"]) for row in rows] == [
        ("ks64", "LANDED", "REVERTED"),
        ("tm256", "REVERTED", "REVERTED"),
    ]
    assert all(row["low"] <= row["gain"] <= row["high"] for row in rows)
    assert browser.draw_verdicts(PROBES, [], "h200").rows == []


def test_the_browser_follows_its_controls(runs):
    explorer = browser.RecordBrowser(PROBES, runs)
    name = explorer.controls["name"]
    assert explorer.report.probe.name == "ks64" and len(name.options) == len(PROBES)
    assert ("ks64: REVERTED → LANDED", "ks64") in name.options
    explorer.set(shown="REVERTED", name="tm256")
    assert [value for _, value in name.options] == ["tm256", "af32"]
    assert "<b>REVERTED</b> (NVIDIA" in explorer.panel.value
    explorer.set(shown=browser.ALL)
    assert explorer.report.probe.name == "tm256" and len(name.options) == len(PROBES)
    explorer.set(shown="null")
    assert name.value is None and explorer.panel.value == "<p>No probe.</p>"
    explorer.set(shown="LANDED")
    assert explorer.report.probe.name == "ks64" and "The 1 under" in explorer.panel.value
