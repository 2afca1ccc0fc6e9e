"""The comparison with cuBLAS: its arithmetic, and what it says where it cannot run. No figure is asserted."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from minfer import cli
from minfer.campaign.against import SHAPES, Against, Comparison, geometric_mean, newest_comparisons
from minfer.campaign.contests import BLOCKS, COLD_BYTES, Contest, contests, copies, launches
from minfer.campaign.records import read_record, write_record
from minfer.campaign.side_by_side import _Match, compare
from minfer.campaign.stopwatch import Stretch
from minfer.engine.errors import EngineError


def row(ours: float, theirs: float) -> Comparison:
    return Comparison("o", 2048, 3584, 3584, "128x224x64", ours, theirs, "burst")


def test_ratios_and_speeds():
    one = row(72.0, 77.5)
    assert one.ratio == pytest.approx(1.0764, abs=1e-4)
    assert one.tflops == pytest.approx((730.7, 678.9), abs=0.1)
    assert str(one).startswith("o             2048 tokens burst        731 TFLOPS, cuBLAS  679: 1.076")
    assert one.as_dict()["ratio"] == one.ratio
    assert geometric_mean([row(1.0, 2.0), row(2.0, 1.0)]) == pytest.approx(1.0)
    clocked = replace(one, ours_mhz=1500.0, theirs_mhz=1600.0, clock="counters")
    assert clocked.cycles == (108_000, 124_000) and one.cycles is None
    assert str(clocked).endswith("108.0 and 124.0 kilocycles at 1500 and 1600 MHz")
    assert replace(clocked, clock="NVML").cycles is None
    assert replace(clocked, clock="NVML", regime="sustained").cycles == clocked.cycles


def test_energy_is_power_over_time():
    one = replace(row(50.0, 75.0), regime="alone", ours_w=700.0, theirs_w=600.0)
    assert one.millijoules == (35.0, 45.0) and row(1.0, 2.0).millijoules is None
    assert str(one).endswith("35.0 and 45.0 mJ at 700 and 600 W")


def test_attention_counts_both_of_its_products():
    one = replace(row(50.0, 75.0), product="attention", depth=2049, weights="", peer="cuDNN")
    pairs = sum(range(1, 2049))  # of a query and a key, a head
    assert one.tflops[0] == pytest.approx(2 * 2 * pairs * 28 * 128 / 50 / 1e6)
    assert str(one).startswith("attention") and "cuDNN" in str(one)


def test_record(tmp_path):
    stamp = {"file": "", "date": "2026-11-30T01:00:00+00:00", "commit": "abc", "device": "NVIDIA H200"}
    record = Against(
        **stamp,
        driver="580",
        command="minfer bench --against torch",
        library="torch",
        results=[row(1.0, 2.0)],
    )
    path = write_record(record, tmp_path, stem=record.stem)
    again = read_record(path)
    assert path.name.startswith("against-torch-burst") and again.results == record.results
    for results, message in (
        ([], "at least one product"),
        ([row(1.0, 2.0), replace(row(1.0, 2.0), regime="sustained")], "one regime"),
        ([row(0.0, 2.0)], r"results\[0\].ours_us"),
        ([replace(row(1.0, 2.0), product="v")], r"results\[0\].product: 'v' is none of q\+k\+v, o"),
        ([replace(row(1.0, 2.0), weights="Q5_K")], r"results\[0\].weights: 'Q5_K'"),
        ([row(1.0, 2.0), row(1.0, 3.0)], "o F16 of 2048 tokens comes more than once"),
        ([replace(row(1.0, 2.0), clock="foo")], r"results\[0\].clock: 'foo' is none of counters, NVML"),
        ([replace(row(1.0, 2.0), weights="")], r"results\[0\].weights: '' of o: attention alone has none"),
        ([replace(row(1.0, 2.0), od=7)], r"od, depth: 7, 3584 of o, which has \(3584, 3584\)"),
        ([replace(row(1.0, 2.0), regime="idle")], r"results\[0\].regime: 'idle' is none of burst, "),
        ([replace(row(1.0, 2.0), theirs_w=-1.0)], r"results\[0\].theirs_w"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(record, results=results).check()


@pytest.mark.parametrize("nt", [1, 512, 2048, 8192])
@pytest.mark.parametrize("product", SHAPES)
def test_weights_take_turns_and_graphs_are_whole(product, nt):
    od, depth = SHAPES[product]
    turns = copies(2 * od * depth)
    assert turns * 2 * od * depth >= COLD_BYTES
    assert launches(nt, od, depth, turns) % turns == 0
    assert launches(nt, od, depth, turns) >= turns


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EngineError, match=r"torch is not installed: .*: pip install torch"):
        compare(contests([512]))


def test_every_product_and_the_attention_is_compared():
    made = [(one.func.__name__, one.keywords) for one in contests([512, 2048])]
    assert len(made) == 2 * (len(SHAPES) + len(BLOCKS) + 1)
    assert [name for name, _ in made].count("attention") == 2
    assert {(words["format"], words["name"]) for name, words in made if name == "block_product"} == set(
        BLOCKS
    )


def test_kinds_are_left_out():
    kinds = [one.func.__name__ for one in contests([512], ["F16", "attention"])]
    assert kinds == ["f16_product"] * len(SHAPES) + ["attention"]
    assert [one.keywords["format"] for one in contests([512], ["Q6_K"])] == ["Q6_K"]


class Side:
    """A graph and what it leaves; replaying takes nothing, the stopwatch has its own mind."""

    def __init__(self, us, watts):
        self.us, self.watts, self.left = us, watts, None

    def replay(self):
        self.left = 0.0 if self.left != self.left else self.left

    def fill_(self, value):
        self.left = value


class Watch:
    """Every stretch of a side takes longer than the one before."""

    def __init__(self):
        self.order = []

    def stretch(self, run, seconds, settle):
        side = run.__self__
        self.order.append(side)
        assert seconds > settle > 0
        return Stretch(10 * (side.us + self.order.count(side)), 1400.0, side.watts)


def alone_match(error):
    """A match of ours and two ways of another library's, without a GPU."""
    match = object.__new__(_Match)
    sides = {"ours": Side(4.0, 690.0), "slow": Side(9.0, 700.0), "fast": Side(5.0, None)}
    match.contest = Contest("o", 512, 3584, 3584, "a tile", "F16", [], {"slow": [], "fast": []}, error)
    match.graphs = match.results = sides
    match.stopwatch = Watch()
    return match


def test_alone_every_side_has_slices_of_its_own(monkeypatch):
    monkeypatch.setattr(Contest, "launches", 10)
    match = alone_match(lambda result: result.left)
    found = match.play_alone(4)
    assert (found.regime, found.peer, found.ours_us, found.theirs_us) == ("alone", "fast", 6.5, 7.5)
    assert (found.ours_w, found.theirs_w, found.ours_mhz, found.clock) == (690.0, None, 1400.0, "counters")
    order = match.stopwatch.order
    assert order[:3] == order[5:2:-1] and order[6:9] == order[:8:-1] and set(order[:3]) == set(order[6:9])


def test_alone_a_wrong_result_is_not_timed():
    with pytest.raises(EngineError, match=r"o at 512 tokens, ours .*: off by 5"):
        alone_match(lambda result: 0.5).play_alone(1)


def test_the_newest_of_each_is_found():
    stamp = {"file": "", "date": "2026-11-30T01:00:00+00:00", "commit": "abc", "device": "NVIDIA H200"}
    stamp |= {"driver": "580", "command": "a", "library": "torch"}
    blocks = replace(row(3.0, 3.0), weights="Q4_K")
    old = Against(**stamp, results=[blocks, row(1.0, 2.0), replace(row(1.0, 1.0), nt=512)])
    new = Against(**stamp, results=[row(4.0, 2.0)])
    found = newest_comparisons([old, new], "h200", "burst")
    assert list(found) == [(512, "F16", "o"), (2048, "F16", "o"), (2048, "Q4_K", "o")]
    assert found[2048, "F16", "o"] == (new.results[0], new) and found[2048, "Q4_K", "o"] == (blocks, old)
    assert newest_comparisons([old], "h200", "sustained") == {}


def test_the_command(capsys, monkeypatch, tmp_path):
    seen, products = {}, []

    def compared(makers, rounds, soak, on_row):
        makers = list(makers)
        seen.update(tokens={make.keywords["nt"] for make in makers}, rounds=rounds, soak=soak)
        products.append([str(make) for make in makers])
        rows = [row(1.0, 2.0), replace(row(2.0, 1.0), nt=512)]
        for one in rows:
            on_row(one)
        return rows

    monkeypatch.setattr("minfer.campaign.side_by_side.compare", compared)
    assert cli.main(["bench", "--against", "torch", "-p", "512", "-r", "3", "--sustained", "0.5"]) == 0
    assert seen == {"tokens": {512}, "rounds": 3, "soak": 0.5}
    out = capsys.readouterr().out
    assert (
        out.endswith("products of F16 weights: geometric mean 1.000, lowest 0.500\n")
        and out.count("cuBLAS") == 2
    )
    gpu = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr("minfer.cuda.runtime.device", lambda: gpu)
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"of {package}")
    assert cli.main(["bench", "--against", "torch", "-p", "512", "-r", "3", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.rglob("*.json")
    kept = read_record(path)
    assert kept.command == "minfer bench --against torch -p 512 -r 3 --sustained 0"
    assert kept.library == "torch of torch" and len(kept.results) == 2
    assert cli.main(["bench", "--against", "torch", "-p", "0"]) == 2
    capsys.readouterr()
    for flags in (["-m", "x"], ["-n", "3"], ["--route", "w4a16"], ["--variant", "all"], ["--kv-type", "f32"]):
        assert cli.main(["bench", "--against", "torch", *flags]) == 2
        assert "leave out -m" in capsys.readouterr().err
    assert cli.main(["bench", "--against", "torch", "-p", "64", "-p", "64"]) == 0
    assert seen["tokens"] == {64} and len(products[-1]) == len(set(products[-1]))
    taken = tmp_path / "file"
    taken.touch()
    assert cli.main(["bench", "--against", "torch", "--out", str(taken / "below")]) == 2
    assert "no folder that can be written to" in capsys.readouterr().err
    assert cli.main(["bench"]) == 2
    assert "-m MODEL" in capsys.readouterr().err


def test_the_command_of_each_side_alone(capsys, monkeypatch, tmp_path):
    seen = {}

    def compared(makers, rounds, on_row):
        seen.update(kinds=[make.func.__name__ for make in makers], rounds=rounds)
        return [replace(row(1.0, 2.0), regime="alone", ours_w=700.0, theirs_w=699.0)]

    monkeypatch.setattr("minfer.campaign.side_by_side.compare_alone", compared)
    monkeypatch.setattr("minfer.cuda.runtime.device", lambda: SimpleNamespace(name="NVIDIA H200"))
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"of {package}")
    bench = ["bench", "--against", "torch", "-p", "512", "-r", "2"]
    assert cli.main([*bench, "--alone", "--out", str(tmp_path)]) == 0
    assert seen == {"kinds": ["f16_product"] * len(SHAPES), "rounds": 2}
    (path,) = tmp_path.rglob("against-torch-alone*.json")
    assert read_record(path).command == "minfer bench --against torch -p 512 -r 2 --alone"
    assert cli.main([*bench, "--alone", "--only", "Q6_K", "--only", "attention", "--json"]) == 0
    assert seen["kinds"] == ["block_product", "attention"]
    for wrong, message in (
        ([*bench, "--alone", "--sustained", "1"], "leave one out"),
        ([*bench, "--only", "Q5_K"], "--only Q5_K: kinds are F16, "),
        (["bench", "-m", "a", "--alone"], "--against torch"),
    ):
        capsys.readouterr()
        assert cli.main(wrong) == 2
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
