"""Records: what is committed is valid, and what is not valid is refused by file and field."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from minfer.arithmetic.devices import DEVICES
from minfer.campaign.peers import llamacpp
from minfer.campaign.record import origins
from minfer.campaign.records import (
    FOLDER,
    KINDS,
    SCHEMA,
    Bench,
    RecordError,
    load_records,
    newest_measured,
    read_record,
)

PATHS = sorted(FOLDER.rglob("*.json"))
EXAMPLES = {json.loads(path.read_text())["kind"]: path for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_committed_records_are_valid(path):
    record = read_record(path)
    assert record.device_key in DEVICES and path.parent.name == record.device_key
    assert record.file == path.name and record.schema == SCHEMA
    assert record.device in record.origin and record.day in record.origin


def test_every_kind_has_an_example():
    assert EXAMPLES.keys() >= KINDS.keys() - {"against"}


def test_choosing():
    everything = load_records()
    assert len(everything) == len(PATHS)
    assert [record.date for record in everything] == sorted(record.date for record in everything)
    for kind in KINDS:
        chosen = load_records(kind=kind)
        assert chosen or kind == "against"
        assert all(type(record) is KINDS[kind] for record in chosen)
    assert load_records(device="h200") == load_records(device="NVIDIA H200")
    assert load_records(device="gb10") == []
    assert load_records(kind="bench", device="h200")


def test_asking_for_what_there_is_not(tmp_path):
    with pytest.raises(RecordError, match="'speed' is unknown; known: gpu-tests, bench, sweep"):
        load_records(kind="speed")
    with pytest.raises(FileNotFoundError, match="come with the repository"):
        load_records(tmp_path / "nowhere")
    assert load_records(tmp_path) == []


def test_a_bench_by_test():
    record = read_record(EXAMPLES["bench"])
    assert isinstance(record, Bench) and record.device == "NVIDIA H200"
    assert record.result("pp2048").n_prompt == 2048
    assert record.result("tg128").samples_ns == record.results[1].samples_ns
    assert all(result.test_time for result in record.results)
    with pytest.raises(RecordError, match="no test pp1, only pp2048, tg128"):
        record.result("pp1")


def change(entry: dict, path: tuple, value) -> dict:
    """A copy with one value replaced, or left out if it is `...`."""
    changed = copy.deepcopy(entry)
    holder = changed
    for step in path[:-1]:
        holder = holder[step]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("sweep", ("kind",), "speed", r"kind: 'speed' is unknown; known: gpu-tests, bench, sweep"),
        ("sweep", ("kind",), ..., r"kind: None is unknown"),
        ("sweep", ("kind",), ["sweep"], r"kind: \['sweep'\] is unknown"),
        ("sweep", ("rest_s",), 10**400, r"rest_s: a number of 401 digits"),
        ("bench", ("results", 0, "n_prompt"), 10**400, r"results\[0\]\.n_prompt: a number of 401 digits"),
        ("wall", ("settings", "q_share"), [1], r"settings\['q_share'\]: \[1\] is no share"),
        ("sweep", ("schema",), 3, r"schema: 3, this version of minfer reads 1 to 2"),
        ("sweep", ("rest_s",), ..., r"rest_s: missing"),
        ("sweep", ("rest_s",), "94", r"rest_s: '94' is no float"),
        ("sweep", ("rest_s",), True, r"rest_s: True is no float"),
        ("sweep", ("rest_s",), float("nan"), r"rest_s: nan is no finite number"),
        ("sweep", ("date",), "2026-11-29", r"date: '2026-11-29' is no ISO 8601 date"),
        ("sweep", ("date",), "yesterday", r"date: 'yesterday' is no ISO 8601 date"),
        ("sweep", ("tok_s",), 1, r"tok_s: no such field"),
        ("sweep", ("command",), "\udcff", r"command: '\\udcff' is no Unicode text"),
        ("sweep", ("results",), [], r"results: a list of at least one test"),
        ("sweep", ("results", 2, "avg_ns"), 0, r"results\[2\]\.avg_ns: 0 is not above 0"),
        ("sweep", ("results", 2, "test"), "pp512", r"results: of more than one test"),
        ("sweep", ("results", 2, "settings", "variant"), "f16", r"results: a variant more than once"),
        ("sweep", ("results", 2, "settings", "changes"), ..., r"results\[2\]\.settings: no changes"),
        ("sweep", ("results", 0, "settings", "gemm"), 3, r"results\[0\]\.settings\['gemm'\]: 3 is no str"),
        ("bench", ("results",), [], r"results: a list of at least one test"),
        ("bench", ("results", 0, "sensors"), {"sm_mhz": -5.0}, r"results\[0\].*sensors\['sm_mhz'\]: -5"),
        (
            "bench",
            ("results", 0, "sensors"),
            {"power_w": 1e18},
            r"results\[0\].sensors\['power_w'\]: 1e\+18 is nothing",
        ),
        ("bench", ("results", 0), 3, r"results: a list of at least one test"),
        ("bench", ("results", 1, "avg_ns"), ..., r"results\[1\]\.avg_ns: missing"),
        ("bench", ("results", 1, "n_gen"), 2048.0, r"results\[1\]\.n_gen: 2048\.0 is no int"),
        ("bench", ("results", 1, "avg_ts"), 1.0, r"results\[1\]\.avg_ts: 1\.0, but"),
        ("bench", ("results", 0, "samples_ns", 2), "x", r"results\[0\]\.samples_ns\[2\]: 'x' is no int"),
        ("bench", ("results", 1, "device"), "GPU (x)", r"results\[1\]\.device: 'GPU \(x\)' beside 'NVIDIA"),
        ("gpu-tests", ("passed",), 1, r"passed: 1, but its files add up to \d+"),
        ("gpu-tests", ("measured",), 3, r"measured: 3 is no dict"),
        ("wall", ("phase",), "sleep", r"phase: 'sleep' is neither prefill nor decode"),
        ("wall", ("wall_ms",), [], r"wall_ms: at least one sample"),
        ("wall", ("gap_ms",), 99.0, r"buckets: with the gaps"),
        ("wall", ("buckets", 0, "ms"), 0.5, r"buckets\[0\]\.ms: 0\.5, but its kernels add up"),
        ("wall", ("environment", "arch"), ..., r"environment\.arch: missing"),
        ("against", ("results", 1, "product"), "qk", r"results\[1\]\.product: 'qk' is none of q\+k\+v, o,"),
        ("against", ("results", 0, "ours_us"), 0, r"results\[0\]\.ours_us: 0 is not above 0"),
        ("probe", ("verdict",), "LANDED", r"verdict: LANDED, but"),
        ("probe", ("gates", 0, "passed"), "yes", r"gates\[0\]\.passed: 'yes' is no bool"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, kind, path, value, words):
    file = tmp_path / "some.json"
    file.write_text(json.dumps(change(json.loads(EXAMPLES[kind].read_text()), path, value)))
    with pytest.raises(RecordError, match=r"^some\.json: " + words):
        read_record(file)


def test_a_result_without_a_time_has_the_record_s(tmp_path):
    """As schema 1 had it, which knew no test_time."""
    entry = json.loads(EXAMPLES["bench"].read_text())
    file = tmp_path / "some.json"
    file.write_text(json.dumps(change(entry, ("results", 0, "test_time"), ...)))
    (first, *_) = read_record(file).results
    assert first.test_time == entry["date"] != entry["results"][0]["test_time"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no JSON"), ("{", "no JSON"), ("[1]", "an object, not list"), ("[" * 100_000, "no JSON")],
    ids=lambda text: text[:9],
)
def test_files_that_hold_no_record(tmp_path, text, words):
    file = tmp_path / "some.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=rf"^some\.json: .*{words}"):
        load_records(tmp_path)


def test_a_run_gives_its_figures_and_says_what_it_lacks():
    name = "convert 2048x18944 vector=8: GB/s"
    run = newest_measured(load_records(), "h200", [name])
    assert run.figure(name) == run.measured[name] and run.device_key == "h200"
    with pytest.raises(KeyError, match="alike: convert 2048x18944 vector=1"):
        run.figure("convert of nothing")
    for wrong in ("abc", float("nan"), True):
        told = replace(run, measured={name: wrong})
        with pytest.raises(RecordError, match=r"json: measured\['convert .*\]: .* is no finite number"):
            told.figure(name)


@pytest.mark.parametrize(("device", "name"), [("h200", "no such figure"), ("gb10", "launch us: prepared")])
def test_what_no_run_measured_is_named(device, name):
    with pytest.raises(RecordError, match=f"no gpu-tests record of {device} holds {name}"):
        newest_measured(load_records(), device, [name])


def test_llamacpp():
    peer = llamacpp()
    assert peer.tok_s["pp2048_ub2048"] == (10092, 360) and peer.tok_s["tg128"] == (281.3, 1.7)
    assert "llama-cpp-python" in peer.what and peer.origin == "NVIDIA H200, driver 580.159, 2026-11-29"


def test_records_of_one_place_and_day_share_a_caption():
    first = read_record(EXAMPLES["bench"])
    later = replace(first, commit="f" * 40)
    other = replace(first, driver="999")
    assert origins([first]) == first.origin
    assert origins([later, first, first]) == first.origin.replace("commit ", "commits ") + ", fffffff"
    assert origins([other, first]) == f"{first.origin}; {other.origin}"
