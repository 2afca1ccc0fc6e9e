"""Counters by ncu: what is profiled, what its CSV says, and what is told where it cannot be had."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from minfer.campaign import counters
from minfer.campaign.counters import METRICS, NotCounted, largest, parse, read_counters
from minfer.campaign.document import wall_table
from minfer.campaign.observe import Observed
from minfer.campaign.records import RecordError, read_record, write_record
from minfer.cuda.kernel import Kernel
from tests.campaign.walls import example_wall

CSV = "\n".join(
    [
        "==PROF== Connected to process 7",
        ",".join(f'"{name}"' for name in ("ID", "Kernel Name", *METRICS.values())),
        ",".join(f'"{unit}"' for unit in ("", "", *["%"] * len(METRICS))),
        '"0","gemm","85.00","61.50","42.00","37.5"',
        '"1","swiglu","93.25","94.00","1,000.00","50.0"',
    ]
)


def observed(name: str, bucket: str, gmac: float, nbytes: float) -> Observed:
    return Observed(
        Kernel(name, "config", lambda: None, 32, 0, ()), (1, 1, 1), (), False, bucket, gmac, nbytes
    )


def test_each_class_is_told_by_its_largest_launch():
    launches = [
        observed("a", "down", 1.0, 5.0),
        observed("b", "down", 2.0, 1.0),
        observed("c", "swiglu", 0.0, 1.0),
        observed("d", "swiglu", 0.0, 2.0),
    ]
    assert {name: launch.kernel.name for name, launch in largest(launches).items()} == {
        "down": "b",
        "swiglu": "d",
    }


def test_the_csv_of_ncu():
    found = parse(CSV, ["gate+up", "swiglu"])
    assert found["gate+up"] == pytest.approx({"memory": 0.85, "DRAM": 0.615, "SM": 0.42, "warps": 0.375})
    assert found["swiglu"]["SM"] == 10.0
    with pytest.raises(NotCounted, match="2 launches of 1"):
        parse(CSV, ["gate+up"])
    with pytest.raises(NotCounted, match="no number for swiglu"):
        parse(CSV.replace("93.25", "n/a"), ["gate+up", "swiglu"])


def fake_ncu(folder, monkeypatch, body: str) -> None:
    """A program of that name; `log` is the file that its CSV is wanted in, `child` what it was to run."""
    path = folder / "ncu"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nlog = sys.argv[sys.argv.index('--log-file') + 1]\n"
        f"child = sys.argv[sys.argv.index('minfer.campaign.counters') + 1 :]\n{body}\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_ncu_runs_the_pass_and_its_csv_is_read(tmp_path, monkeypatch):
    said = f"open(log, 'w').write({CSV!r}); print('loading'); print('[\"gate+up\", \"swiglu\"]')"
    fake_ncu(tmp_path, monkeypatch, f"assert child == ['7b', 'prefill', 'f16', '2048', '0']\n{said}")
    assert read_counters("7b", "prefill", "f16", 2048, 0) == parse(CSV, ["gate+up", "swiglu"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("open(log, 'w').write('==ERROR== ERR_NVGPUCTRPERM: no permission')", "ERR_NVGPUCTRPERM"),
        ("sys.exit('NoDevice: no NVIDIA driver')", "no NVIDIA driver"),
        ("", "it said nothing"),
        ("import time; time.sleep(9)", "no counters after 1 s"),
    ],
)
def test_why_there_are_none(tmp_path, monkeypatch, body, words):
    monkeypatch.setattr(counters, "LIMIT_S", 1)
    fake_ncu(tmp_path, monkeypatch, body)
    with pytest.raises(NotCounted, match=words):
        read_counters("7b", "prefill", "f16", 2048, 0)


def test_without_ncu(tmp_path, monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda *_, **__: None)
    with pytest.raises(NotCounted, match="counters take Nsight Compute: ncu is not on the path"):
        read_counters("7b", "prefill", "f16", 2048, 0)


def test_counters_stand_beside_the_classes(tmp_path):
    wall = replace(example_wall(), counters=parse(CSV, ["gate+up", "swiglu"]))
    path = write_record(wall, tmp_path, stem="wall")
    assert read_record(path).counters == wall.counters
    table = wall_table(wall)
    assert table.columns[-4:] == ("ncu memory", "ncu DRAM", "ncu SM", "ncu warps")
    assert table.rows[0][0] == "gate+up" and table.rows[0][-4:] == ("85%", "62%", "42%", "38%")
    assert table.rows[1][-4:] == table.rows[-1][-4:] == ("",) * 4 and "profiled by itself" in table.note
    with pytest.raises(RecordError, match="no bucket is called lm_head"):
        write_record(replace(wall, counters={"lm_head": {}}), tmp_path, stem="wall")
