"""Probes beside the seeds', as notebooks show them."""

from __future__ import annotations

import re

import pytest

from minfer.campaign.discovery import later
from minfer.campaign.probe import ProbeError
from minfer.campaign.records import load_records
from minfer.lab import later_view

NAMES = [probe.name for probe in later()]


def test_what_is_asked_says_what_is_foretold():
    rows = later_view.asked_rows(*NAMES)
    assert [row["probe"] for row in rows] == NAMES
    assert all(re.search(r"\d", row["predicted"]) and row["question"] and row["hypothesis"] for row in rows)


def test_what_was_found_is_of_the_records():
    records = load_records(kind="probe", device="h200")
    rows = later_view.found_rows(records, "token-prefetch", "gemv-planes-down")
    assert [row["probe"] for row in rows] == ["token-prefetch"] * 2 + ["gemv-planes-down"]
    assert rows[1]["case"].startswith("decode of 128 tokens") and rows[1]["before (us)"] > 1e5
    run = max((run for run in records if run.probe == "gemv-planes-down"), key=lambda run: run.date)
    (comparison,) = run.kernels
    assert rows[2]["after (us)"] == pytest.approx(1e3 * comparison.ms[1])
    assert rows[2]["speed"] == f"{comparison.ratio - 1:+.1%}" and rows[2]["verdict"] == run.verdict


def test_what_was_not_run_or_is_not_there():
    assert later_view.found_rows([], *NAMES) == []
    with pytest.raises(ProbeError, match="no probe is called 'ks64': there are gemv-planes-down, "):
        later_view.asked_rows("ks64")
