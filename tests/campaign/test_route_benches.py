"""Several routes on one copy of the weights, each measured as alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minfer import cli
from minfer.campaign import route_benches
from minfer.campaign.records import read_record
from minfer.campaign.route_benches import bench_routes
from minfer.engine import bench as engine_bench
from minfer.engine.errors import InputError
from tests.campaign.fake_gpu import Clock, FakeGpu, install

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"
ROUTES = ("f16", "f16-wgmma", "mmq_raw", "w4a16")


@pytest.fixture
def gpu(monkeypatch):
    made = install(monkeypatch, FakeGpu())
    monkeypatch.setattr(engine_bench, "time", Clock(made))
    monkeypatch.setattr(route_benches, "GpuDevice", lambda: made)
    monkeypatch.setattr(
        route_benches, "compile_ahead", lambda kernels, arch, tell: tell(f"{len(kernels)} kernels")
    )
    monkeypatch.setattr("minfer.cuda.runtime.device", lambda: made.gpu)
    return made


def test_each_route_is_measured(gpu):
    said = []
    runs = list(bench_routes(str(TINY), [*ROUTES, "f16"], [100], [4], 3, say=said.append))
    assert [results[0].settings["route"] for results in runs] == list(ROUTES)
    for results in runs:
        assert [result.test for result in results] == ["pp100", "tg4"]
        assert all(len(result.samples_ns) == 3 and result.n_ubatch == 100 for result in results)
    memory = {results[0].settings["route"]: results[0].settings["memory"] for results in runs}
    assert memory["w4a16"] != memory["f16"] == memory["f16-wgmma"]
    assert sum("memory:" in line for line in said) == 1  # one copy


def test_a_long_prompt_goes_through_in_chunks(gpu, monkeypatch):
    monkeypatch.setattr(route_benches.CudaBackend, "default_chunk", 48)
    ((result,),) = bench_routes(str(TINY), ["f16"], [100], [], 1, say=lambda line: None)
    assert result.n_ubatch == 48


def test_nothing_to_measure(gpu):
    with pytest.raises(InputError, match="nothing to measure"):
        list(bench_routes(str(TINY), ROUTES, [0], [0]))


def test_the_command_keeps_a_record_of_each(gpu, capsys, tmp_path):
    argv = ["bench", "-m", str(TINY), "-p", "64", "-n", "2", "-r", "2", "--route", "f16,mmq_raw"]
    assert cli.main([*argv, "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    names = [line.split()[:2] for line in captured.out.splitlines()]
    assert names == [[route, test] for route in ("f16", "mmq_raw") for test in ("pp64", "tg2")]
    records = [read_record(path) for path in sorted(tmp_path.rglob("*.json"))]
    assert [record.stem for record in records] == ["bench-qwen2-tiny-f16", "bench-qwen2-tiny-mmq_raw"]
    for record in records:
        assert record.file.startswith(record.stem) and record.regime == "burst"
        assert record.command == "minfer bench -m qwen2-tiny.gguf -p 64 -n 2 -r 2 --route f16,mmq_raw"
    assert cli.main([*argv, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert cli.main([*argv, "--weights", "blocks"]) == 2
    assert "several routes: leave out" in capsys.readouterr().err
