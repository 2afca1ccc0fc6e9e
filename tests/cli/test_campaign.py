"""`minfer probe`, `minfer decompose` and `minfer report`."""

from __future__ import annotations

import json

import pytest

from minfer import cli
from minfer.cuda.runtime import available

PROBE = "p5.1-vectorized-elementwise"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list(capsys):
    status, out, _ = run(capsys, "probe", "list")
    assert status == 0 and out.splitlines()[0].split() == ["probe", "question", "seed", "ours"]
    assert PROBE in out and "LANDED" in out
    status, out, _ = run(capsys, "probe", "list", "--json")
    rows = json.loads(out)
    assert status == 0 and rows[0]["probe"] == "p5.0-pv-tensor-cores" and rows[0]["seed verdict"] == "LANDED"


def test_show(capsys):
    status, out, _ = run(capsys, "probe", "show", "ks64")
    assert status == 0
    for words in ("hypothesis:", "prediction:", "gates: parity, outputs, tokens", "REVERTED in seed 000"):
        assert words in out
    status, out, _ = run(capsys, "probe", "show", "ks64", "--json")
    assert status == 0 and json.loads(out)["probe"] == "ks64"
    assert run(capsys, "probe", "show", "nothing")[0] == 2


def test_run_in_the_simulator(capsys):
    status, out, _ = run(capsys, "probe", "run", PROBE, "--device", "simulator")
    assert status == 0 and "gate parity: passed" in out and "gate outputs: passed" in out


def test_a_gate_that_fails_in_the_simulator(capsys, tmp_path):
    from tests.campaign.test_probes import EXAMPLE

    (tmp_path / "mine.py").write_text(EXAMPLE.replace("out[i] = x[i] * 2", "out[i] = x[i] * each"))
    status, out, err = run(
        capsys, "probe", "run", "double-vector", "--device", "simulator", "--probes", str(tmp_path)
    )
    assert status == 1 and "FAILED" in out and "gates failed in double-vector" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probe", "run"), "name the probes to run, or give --all"),
        (("probe", "run", "ks64", "--all"), "name the probes to run, or give --all"),
        (("probe", "run", "ks64", "--device", "abacus"), "--device abacus"),
        (("probe", "run", "nothing"), "no probe is called 'nothing'"),
        (("probe", "run", "r23-decomposition"), "give one with -m"),
        (("probe", "list", "--probes", "nowhere"), "no such file or folder"),
        (("report", "--records", "nowhere"), "no folder nowhere"),
    ],
)
def test_what_is_refused(capsys, arguments, words):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and words in err and len(err.strip().splitlines()) == 1


@pytest.mark.skipif(available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [("probe", "run", "ks64"), ("decompose", "-m", "data/qwen2-tiny.gguf")])
def test_without_a_gpu_it_says_what_is_missing(capsys, arguments):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and "NVIDIA" in err


def test_note(capsys, tmp_path):
    from minfer.campaign.records import FOLDER, read_record

    path = tmp_path / "record.json"
    path.write_text(next(FOLDER.rglob("probe-ks64*.json")).read_text())
    status, out, _ = run(capsys, "probe", "note", str(path), "--reason", "another GPU")
    assert status == 0 and "reason: another GPU" in out and read_record(path).reason == "another GPU"
    assert run(capsys, "probe", "note", str(path))[0] == 2


def test_report(capsys, tmp_path):
    status, out, _ = run(capsys, "report")
    assert status == 0 and out.startswith("# The campaign\n\n## Probes\n")
    page = tmp_path / "campaign.html"
    status, out, _ = run(capsys, "report", "--format", "html", "-o", str(page))
    assert status == 0 and out.strip() == str(page) and page.read_text().startswith("<!doctype html>")
    assert run(capsys, "report", "--check")[0] == 0
