"""The probes that minfer ships, and those of one's own."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from minfer.campaign.discovery import FOLDERS, choose, find, from_path, shipped, write_new
from minfer.campaign.probe import BAR, Prediction, Probe, ProbeError
from minfer.campaign.seeds import verdicts
from minfer.campaign.session import simulate
from minfer.campaign.statistics import upper_bound
from minfer.campaign.trial import kernels_of
from minfer.campaign.workload import Case, pooled_normal
from minfer.campaign.workloads import Mmq

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLE = next(
    block for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if "PROBE = " in block
)
REFERENCE = "    def reference(self, case, inputs):"
PREPARED = "    def prepared(self, config, case, inputs):\n        {}\n"
PROBES = {probe.name: probe for probe in shipped()}
QUICK = ("p5.1-vectorized-elementwise", "quantize-rebuild")
SLOW = ("p5.2-tm128", "ks64", "af32", "p5.3-softmax-padding")


def test_every_verdict_of_the_seeds_has_a_probe():
    assert PROBES.keys() == verdicts().keys()
    assert all(probe.seed is not None and probe.seed.probe == name for name, probe in PROBES.items())


@pytest.mark.parametrize("probe", PROBES.values(), ids=lambda probe: probe.name)
def test_a_probe_says_what_it_must(probe):
    assert probe.bar == BAR and probe.mechanism and probe.retry
    prediction = probe.predicted()
    assert len(prediction.text) > 40 and str(prediction)
    assert re.search(r"\d", prediction.text), "a prediction has numbers"
    if prediction.gain is not None:
        assert 0 <= prediction.gain < 1
    if probe.measure == "ab":
        assert probe.baseline != probe.variant
        assert {"parity", "outputs", "tokens"} == {gate.name for gate in probe.gates}
        assert sum(case.count for case in probe.workload.cases) >= 27


@pytest.mark.parametrize("name", [name for name, probe in PROBES.items() if probe.measure == "ab"])
def test_its_kernels_are_known_without_a_gpu(name):
    kernels = kernels_of(PROBES[name])
    configs = {str(kernel.config) for kernel in kernels}
    assert len(kernels) >= 2 and len(configs) >= 2


@pytest.mark.parametrize("name", QUICK)
def test_its_gates_pass_in_the_simulator(name):
    assert simulate([PROBES[name]], lambda line: None) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_its_gates_pass_in_the_simulator_slowly(name):
    assert simulate([PROBES[name]], lambda line: None) == []


def test_the_wall_has_nothing_to_simulate():
    said: list[str] = []
    assert simulate([PROBES["r23-decomposition"]], said.append) == []
    assert "the wall is measured on a GPU: nothing to simulate" in said


def test_what_the_ledger_bounds():
    assert upper_bound(0.06) == pytest.approx(1 / 0.94 - 1)
    assert upper_bound(0.5, 0.5) == pytest.approx(1 / 0.75 - 1)
    assert PROBES["p5.2-tm128"].predicted().gain == pytest.approx(1 / (1 - 0.74 * 0.25) - 1, rel=1e-3)
    assert PROBES["fa-l2-prefetch"].predicted().gain == 0
    assert "GB10 3 -> 1, H200 7 -> 4" in PROBES["ks64"].predicted().text
    assert "over the cap of a GB10" in PROBES["mmq-wide-kd8"].predicted().text
    with pytest.raises(ValueError, match="leave no wall clock"):
        upper_bound(1.0)


def test_random_blocks_are_blocks():
    workload, case = Mmq(), Case.of("x", nt=70, od=72, id=512)
    import numpy as np

    inputs = workload.inputs(case, np.random.default_rng(0))
    assert inputs["w"].shape == (72, 288) and inputs["x"].shape == (70, 16, 40)
    reference = workload.reference(case, inputs)["out"]
    assert np.isfinite(reference).all() and 0.1 < abs(reference).max() < 1e3


def test_large_inputs_do_not_repeat_by_rows():
    rows = pooled_normal((400, 4096), "float16")
    assert len({row.tobytes() for row in rows}) == 400


# ---- one's own


def test_the_readmes_probe_is_one_file_of_under_40_lines(tmp_path):
    assert len(EXAMPLE.splitlines()) < 40
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE)
    (probe,) = from_path(path)
    assert probe.name == "double-vector" and probe.seed is None
    assert probe.name in find([tmp_path])
    assert simulate([probe], lambda line: None) == []


def test_a_new_file_runs_as_it_is(tmp_path):
    path = tmp_path / "mine.py"
    write_new("my-sum", path)
    text = path.read_text()
    assert text.startswith('"""Sums of rows') and "copies this file" not in text
    (probe,) = from_path(path)
    assert probe.name == "my-sum" and simulate([probe], lambda line: None) == []
    with pytest.raises(ProbeError, match=r"mine\.py is there already"):
        write_new("other", path)
    with pytest.raises(ProbeError, match="ks64 is a probe of minfer's own"):
        write_new("ks64", tmp_path / "other.py")
    with pytest.raises(ProbeError, match="small letters"):
        write_new("Mine", tmp_path / "other.py")
    with pytest.raises(ProbeError, match=r"ends with \.py"):
        write_new("mine", tmp_path / "mine.txt")
    assert path.read_text() == text and sorted(tmp_path.iterdir()) == [path]


def test_probes_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(EXAMPLE)
    (tmp_path / "_helper.py").write_text("raise RuntimeError")
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    assert "double-vector" in find()
    with pytest.raises(
        ProbeError, match=r"two probes are called double-vector, in .*again\.py and .*mine\.py: rename one"
    ):
        (tmp_path / "again.py").write_text(EXAMPLE)
        find()
    (tmp_path / "again.py").write_text(
        EXAMPLE + "\nfrom dataclasses import replace\nPROBES = [PROBE, replace(PROBE)]"
    )
    with pytest.raises(ProbeError, match=r"double-vector, both in .*again\.py: rename one"):
        find()


def test_a_file_that_is_named_twice_counts_once(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(EXAMPLE)
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    assert "double-vector" in find([tmp_path / "mine.py"])


def test_a_name_that_minfer_has_is_told_with_the_file(tmp_path):
    (tmp_path / "mine.py").write_text(EXAMPLE.replace("double-vector", "ks64"))
    with pytest.raises(ProbeError, match=r"called ks64, in minfer itself and .*mine\.py: rename one"):
        find([tmp_path / "mine.py"])


def test_sides_are_called_as_their_configs_call_themselves(tmp_path):
    from minfer.campaign.starter import PROBE, Config

    assert PROBE.called == ("a thread a row", "a warp a row")
    assert replace(PROBE, variant=Config(8)).called == ("a thread a row", "8 lanes a row")
    assert replace(PROBE, variant=PROBE.baseline).called == ("baseline", "variant")
    assert replace(PROBE, labels=("one", "all")).sides[1] == ("all", Config(32))
    (tmp_path / "mine.py").write_text(EXAMPLE)  # its config has no text of its own
    assert from_path(tmp_path)[0].called == ("baseline", "variant")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "declare PROBE = Probe"),
        ("PROBES = []", "declare PROBE = Probe"),
        ("PROBE = 3", "declare PROBE = Probe"),
        ("PROBES = 5", "declare PROBE = Probe"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("\0", ""),  # Python names the error by its version
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_files_that_are_no_probe(tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ProbeError, match=rf"mine\.py: {re.escape(words)}"):
        from_path(path)


def test_asking_for_what_there_is_not(tmp_path):
    with pytest.raises(ProbeError, match=r"no probe is called 'x': there are p5\.0.*: --probes FILE"):
        choose(["x"])
    with pytest.raises(ProbeError, match="no such file or folder"):
        from_path(tmp_path / "none.py")
    with pytest.raises(ProbeError, match=r"no \.py file with a probe"):
        from_path(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ProbeError, match=r"ends with \.py"):
        from_path(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "Mine!"}, "small letters"),
        ({"name": "x", "measure": "guess"}, "neither ab nor wall"),
        ({"name": "x"}, "needs a workload, a baseline and a variant"),
        ({"name": "x", "measure": "wall", "bar": 3}, "a bar of 3 is no gain"),
        ({"name": "x", "measure": "wall", "bar": "3 %"}, "a bar of '3 %' is no gain"),
        ({"name": None}, "small letters"),
        ({"name": "x", "title": None}, "title=None is no text"),
        ({"name": "x", "mechanism": 3}, "mechanism=3 is no text"),
        ({"name": "x", "prediction": 7}, "prediction=7 is no Prediction"),
        ({"name": "x", "labels": ("a",)}, r"labels=\('a',\): two texts"),
    ],
)
def test_probes_that_cannot_be(fields, words):
    with pytest.raises(ProbeError, match=words):
        Probe(**{"title": "t", "hypothesis": "h", "prediction": Prediction(None, "p")} | fields)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("much", "p"), "'much'"), ((float("nan"), "p"), "nan"), ((True, "p"), "True"), ((0.1, None), "None")],
)
def test_predictions_that_cannot_be(arguments, words):
    with pytest.raises(ProbeError, match=f"a prediction's .* not {words}"):
        Prediction(*arguments)


def changed(tmp_path, old: str, new: str) -> Probe:
    """README's probe with something changed."""
    assert EXAMPLE.count(old) == 1
    (tmp_path / "mine.py").write_text(EXAMPLE.replace(old, new))
    (probe,) = from_path(tmp_path)
    return probe


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("workload=Double()", "workload=Double", "is no Workload"),
        ('(Case.of("300", n=300),)', "()", "small ones to check"),  # no check would pass every gate
        ('cases, small = (Case.of("16 M", n=1 << 24),)', "cases, small = ()", "needs cases to measure"),
        ("variant=Config(4),", "variant=Config(4), gates=(),", "at least one Gate"),
        ("variant=Config(4),", "variant=Config(4), gates=(1,),", "at least one Gate"),
        (
            "    cases, small",
            '    phase = "prefil"\n    cases, small',
            "phase='prefil' is neither",
        ),
        ("variant=Config(4),", "variant=None,", "needs a workload, a baseline and a variant"),
    ],
)
def test_an_ab_that_cannot_be(tmp_path, old, new, words):
    with pytest.raises(ProbeError, match=words):
        changed(tmp_path, old, new)


@pytest.mark.parametrize(
    ("compute", "words"),
    [(lambda: 1 / 0, "fails: ZeroDivisionError: division by zero"), (lambda: 7, "gives 7, no Prediction")],
)
def test_a_prediction_that_fails(compute, words):
    probe = replace(PROBES["ks64"], prediction=compute)
    with pytest.raises(ProbeError, match=f"probe ks64: its prediction {words}"):
        probe.predicted()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "baseline=Config(1)",
            "baseline=3",
            r"AttributeError: 'int' object has no attribute 'each' \(mine\.py:",
        ),
        ('"300", n=300', '"300", m=300', r"KeyError: 'n' \(mine\.py:24 in input_shapes\)"),
        ("out[i] =", "out[i + 1000] =", r"OutOfBounds: element 1000 of out.*mine\.py:18 in double"),
        ("double, 256, 0", "double, 5000, 0", "5000 threads a block"),
        ("double, 256, 0", "double, 256, 999999", "SimulatorError: 999999 bytes of shared memory"),
        ('"out": 2 *', '"oot": 2 *', "reference has no 'out', which is compared, but: oot"),
        ('"out": 2 *', '"out": float("nan") *', "error nan of the largest value"),
        ("x[i] * 2", "x[i] * 3", "error 0.5 of the largest value"),
        (REFERENCE, PREPARED.format('inputs["x"][:] = 0; return {}') + REFERENCE, "ValueError: .* read-only"),
        (REFERENCE, PREPARED.format('return {"out": inputs["x"]}') + REFERENCE, "Double.prepared gave out"),
        (REFERENCE, PREPARED.format('return {"y": 5}') + REFERENCE, "Double.prepared gave y = 5, no array"),
        (REFERENCE, PREPARED.format("return None") + REFERENCE, "Double.prepared gave None: give a dict"),
        ('"out": 2 * inputs["x"]', '"out": inputs["x"][1:]', "the reference has shape"),
        ("return [Launch.of(", "return None and [Launch.of(", "Double.launches gave None: give a list"),
        ("return [Launch.of(", "return [5] or [Launch.of(", r"Double.launches gave \[5\]: give a list"),
    ],
)
def test_a_probe_that_fails_in_the_simulator_says_where(tmp_path, old, new, words):
    """And the next probe runs."""
    said: list[str] = []
    wrong, good = (
        changed(tmp_path, old, new),
        replace(changed(tmp_path, "Four elements a thread instead", "Four instead"), name="good"),
    )
    assert simulate([wrong, good], said.append) == ["double-vector"]
    assert [
        line for line in said if re.search(f"(double-vector: failed|gate parity: FAILED): .*{words}", line)
    ]


def test_a_notebooks_probe_that_fails(tmp_path, monkeypatch):
    """Its module has no file."""
    probe, said = changed(tmp_path, '"300", n=300', '"300", m=300'), []
    monkeypatch.setitem(sys.modules, "notebook", ModuleType("notebook"))
    monkeypatch.setattr(type(probe.workload), "__module__", "notebook")
    assert simulate([probe], said.append) == ["double-vector"]
    assert re.search(r"KeyError: 'n' \(mine\.py:24 in input_shapes\)", said[-1])
