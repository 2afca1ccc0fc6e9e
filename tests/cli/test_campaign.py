"""`minfer ceilings`, `minfer probe`, `minfer decompose` and `minfer report`."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from minfer import cli
from minfer.campaign.ceilings import ceilings_of
from minfer.campaign.tensor_ceilings import TensorRate
from minfer.cuda.runtime import available
from tests.campaign.fake_gpu import FakeGpu, install

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
    assert "gates: conservation of every wall\n" in run(capsys, "probe", "show", "r23-decomposition")[1]


def test_run_in_the_simulator(capsys):
    status, out, _ = run(capsys, "probe", "run", PROBE, "--device", "simulator")
    assert status == 0 and "gate parity: passed" in out and "gate outputs: passed" in out
    assert out.index("8 (4) elements a thread") < out.index("prediction: at most +6.4%") < out.index("gate ")


def test_a_gate_that_fails_in_the_simulator(capsys, tmp_path):
    from tests.campaign.test_probes import EXAMPLE

    (tmp_path / "mine.py").write_text(EXAMPLE.replace("out[i] = x[i] * 2", "out[i] = x[i] * each"))
    status, out, err = run(
        capsys, "probe", "run", "double-vector", "--device", "simulator", "--probes", str(tmp_path)
    )
    assert status == 1 and "FAILED" in out and "or nothing was recorded: double-vector" in err


def test_from_a_new_file_to_what_is_known_of_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "probe", "new", "my-sum")
    assert status == 0 and out.startswith("my_sum.py: edit it, then")
    assert run(capsys, "probe", "new", "my-sum")[0] == 2
    assert run(capsys, "probe", "new", "my-sum", "-o", "own/my_sum.py")[0] == 0  # makes the folder
    asked = ("probe", "examine", "my-sum", "--probes", "my_sum.py")
    status, out, err = run(capsys, *asked)
    assert not err  # no terminal
    for words in ("gate races: passed", "Compiled for sm_90a; an SM of NVIDIA H200", "Machine instructions:",
                  "total += x[row * columns + column]", "a warp a row"):  # fmt: skip
        assert words in out
    assert status == 0
    with monkeypatch.context() as terminal:
        terminal.setattr(sys.stderr, "isatty", lambda: True)
        status, out, err = run(capsys, *asked, "--json")
        assert not err
        assert "compiling: a warp a row (" in run(capsys, *asked)[2]
    found = json.loads(out)
    assert found["right"] and {row["side"] for row in found["memory"]} == {"a thread a row", "a warp a row"}
    text = (tmp_path / "my_sum.py").read_text().replace("total += x[row", "total -= x[row")
    (tmp_path / "my_sum.py").write_text(text)
    status, out, _ = run(capsys, *asked)
    assert status == 1 and "gate parity: FAILED: a thread a row, 40 x 96, out: error" in out
    (tmp_path / "my_sum.py").write_text(text.replace("total -= x[row", "total -= nowhere[row"))
    status, out, _ = run(capsys, *asked)
    assert status == 1 and "does not compile" in out and "nowhere" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("numpy",), "numpy.py would hide the module numpy ("),
        (("time",), "time.py would hide the module time (built-in)"),
        (("mine", "-o", "own/minfer.py"), "own/minfer.py would hide the module minfer ("),
        (("lambda",), "lambda.py: lambda is a word of Python's own: choose another file with -o"),
        (("mine", "-o", "__main__.py"), "__main__.py would hide the module __main__"),
    ],
)
def test_a_new_file_hides_no_module(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "probe", "new", *arguments)
    assert status == 2 and words in err and err.rstrip().endswith("choose another file with -o")
    assert not list(tmp_path.iterdir())
    assert run(capsys, "probe", "new", arguments[0], "-o", "my_own.py")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probe", "run"), "name the probes to run, or give --all"),
        (("probe", "run", "ks64", "--all"), "name the probes to run, or give --all"),
        (("probe", "run", "ks64", "--device", "abacus"), "--device abacus"),
        (("probe", "run", "ks64", "--device", "²"), "--device ²"),
        (("probe", "note", "nowhere", "--mechanism", "\udcff"), "--mechanism is not UTF-8: character 0"),
        (("probe", "note", "nowhere", "--mechanism", "x"), "nowhere: No such file or directory"),
        (("probe", "run", "nothing"), "no probe is called 'nothing'"),
        (("probe", "run", "r23-decomposition"), "give one with -m"),
        (("probe", "list", "--probes", "nowhere"), "no such file or folder"),
        (("report", "--records", "nowhere"), "minfer: no folder nowhere"),
        (("report", "--readme", "--records", "nowhere"), "tables are of the repository's records"),
        (("report", "--check", "--device", "gb10"), "tables are of the repository's records"),
        (("report", "-o", "/dev/null/page"), "/dev/null/page: cannot be written: /dev/null is no folder"),
        (("decompose", "-m", "nowhere", "--route", "f17"), "route 'f17' is unknown: choose one of auto, f16"),
        (("decompose", "-m", "nowhere", "--phase", "decode", "--tokens", "64"), "leave out --tokens"),
        (("decompose", "-m", "nowhere", "--context", "64"), "a prefill begins with no context"),
        (("probe", "run", PROBE, "--device", "simulator", "-m", "none"), "leave out --model"),
        (("probe", "run", PROBE, "--device", "simulator", "--out", "x"), "leave out --out"),
        (
            ("probe", "run", PROBE, "--device", "simulator", "--prefill-rounds", "3", "--no-ahead"),
            "leave out --prefill-rounds, --ahead",
        ),
        (("probe", "run", PROBE, "--out", "/dev/null/x"), "no folder that can be written to"),
        (("ceilings", "--out", "/dev/null/x"), "no folder that can be written to"),
        (
            ("report", "--device", "abacus"),
            "no probe and no wall of abacus is recorded; there are records of h200",
        ),
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
    assert ("--device simulator" in err) == (arguments[0] == "probe")


@pytest.fixture
def gpu(monkeypatch):
    """A session on a GPU that only keeps time."""
    from minfer.campaign import session

    made = install(monkeypatch, FakeGpu((1.0, 1.0004, 0.9997, 1.0002)))
    monkeypatch.setattr(session, "GpuDevice", lambda: made)
    monkeypatch.setattr(session, "prepare", lambda *_: None)
    return made


MINE = """from minfer.campaign import Prediction, Probe
from tests.campaign.fake_gpu import Scale, ScaleConfig

def probe(name, variant, **rest):
    return Probe(
        name=name, title="Is it faster?", hypothesis="Because.", prediction=Prediction(0.1, "by the ledger"),
        workload=Scale(**rest), baseline=ScaleConfig(2.0), variant=variant,
    )

PROBES = [
    probe("slower", ScaleConfig(3.0)),
    probe("wrong", ScaleConfig(1.0, wrong=True)),
    probe("impossible", ScaleConfig(1.0), nbytes=8e12),
]
"""


@pytest.mark.parametrize(
    ("names", "status", "records"),
    [(["slower"], 0, 1), (["slower", "wrong"], 1, 2), (["slower", "impossible"], 1, 1)],
)
def test_the_exit_status_tells_of_gates_and_records_not_of_verdicts(
    gpu, capsys, tmp_path, names, status, records
):
    (tmp_path / "mine.py").write_text(MINE)
    places = ("--probes", str(tmp_path / "mine.py"), "--out", str(tmp_path))
    found, _, err = run(capsys, "probe", "run", *names, "--rounds", "6", *places)
    assert found == status and len(list(tmp_path.rglob("probe-*.json"))) == records
    assert ("or nothing was recorded: " in err) is (status == 1)


def test_what_is_not_begun_within_its_time_is_no_failure(gpu, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    places = ("--probes", str(tmp_path / "mine.py"), "--out", str(tmp_path))
    status, out, _ = run(capsys, "probe", "run", "slower", "wrong", "--within", "0", *places)
    assert status == 0 and list(tmp_path.rglob("probe-*.json")) == []
    assert "slower: not begun: 0 s are over" in out and "wrong: not begun" in out


def test_a_wall_with_counters(gpu, capsys, tmp_path, monkeypatch):
    from minfer.campaign import counters, decompose, precompile, prefills
    from minfer.engine.cuda import devices
    from tests.campaign.walls import example_wall

    asked = []
    monkeypatch.setattr(devices, "GpuDevice", lambda: gpu)
    monkeypatch.setattr(prefills, "SharedModel", lambda *_: None)
    monkeypatch.setattr(precompile, "precompile", lambda *_, **rest: asked.append(rest["prompts"]))
    monkeypatch.setattr(decompose, "decompose", lambda *_, **__: example_wall())
    monkeypatch.setattr(
        counters, "read_counters", lambda *known: asked.append(known) or {"gate+up": {"SM": 0.5}}
    )
    model = "data/qwen2-tiny.gguf"
    command = ("decompose", "-m", model, "--route", "f16", "--counters", "--out", str(tmp_path))
    status, out, err = run(capsys, *command)
    assert status == 0 and asked == [(2048, 2048), (model, "prefill", "f16", 2048, 0)]
    assert "ncu SM" in out and "50%" in out and "record: " in err
    (path,) = tmp_path.rglob("wall-prefill-2000-f16-*.json")
    assert json.loads(path.read_text())["counters"] == {"gate+up": {"SM": 0.5}}
    asked.clear()
    assert run(capsys, *command, "--phase", "decode", "--context", "20")[0] == 0
    assert asked == [(84, 20), (model, "decode", "f16", 1, 20)]


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


def test_ceilings_are_told_and_kept(monkeypatch, tmp_path, capsys):
    rate = TensorRate("wgmma", "f16", "128x256", "sustained", 750.0, 1400.0, 699.0)

    def measured(device, say=lambda rate: None):
        say(rate)
        return [rate]

    device = SimpleNamespace(gpu=SimpleNamespace(name="NVIDIA H200"))
    monkeypatch.setattr("minfer.engine.cuda.devices.GpuDevice", lambda: device)
    memory = {"copy_gb_s": 4200, "read_gb_s": 4500}
    monkeypatch.setattr("minfer.campaign.ceilings.measure_memory", lambda device: memory)
    monkeypatch.setattr("minfer.campaign.tensor_ceilings.measure_tensor_cores", measured)
    assert cli.main(["ceilings", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out == f"copy 4,200 GB/s, read 4,500 GB/s (NVIDIA H200)\n{rate}\n"
    assert ceilings_of("NVIDIA H200", tmp_path).reached == (rate,)
    assert cli.main(["ceilings", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["copy_gb_s"] == 4200 and said["tensor_cores"][0]["watts"] == 699.0
