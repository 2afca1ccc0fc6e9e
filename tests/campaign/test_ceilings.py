"""What memory can do, as measured, and that no figure passes it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from minfer.campaign import ceilings
from minfer.campaign.ceilings import AboveCeiling, Ceilings, ceilings_of, measure_memory, write_ceilings
from minfer.campaign.record import RecordError
from minfer.campaign.tensor_ceilings import TensorRate
from minfer.campaign.workload import Work
from minfer.engine.cuda.devices import SimulatedDevice
from tests.campaign.fake_gpu import Array


def test_measured_ceilings_come_from_the_reference_data(tmp_path):
    h200 = ceilings_of("NVIDIA H200")
    assert 3.5e12 < min(h200.copy, h200.read) < max(h200.copy, h200.read) < 4.8e12
    assert h200.tensor["f16"] == pytest.approx(989.5e12, rel=0.01)
    assert ceilings_of("NVIDIA H200", tmp_path).source == "datasheet"
    assert ceilings_of("Matrox Millennium") is None
    assert json.loads(json.dumps(h200.as_dict()))["copy_gb_s"] == h200.copy / 1e9


def test_what_is_impossible_raises():
    limits = Ceilings(copy=4e12, read=4e12, tensor={"f16": 1e15}, source="a test")
    limits.check("fine", Work(0.9e15, 3.9e12), 1.0)
    limits.check("not known", None, 1e-9)
    with pytest.raises(AboveCeiling, match=r"copy: 5e\+12 bytes a second, the ceiling is 4e\+12 \(a test\)"):
        limits.check("copy", Work(0.0, 5e12), 1.0)
    with pytest.raises(AboveCeiling, match="f16 operations a second"):
        limits.check("gemm", Work(2e15, 1.0), 1.0)


class Timed(SimulatedDevice):
    """A simulated device on which all that is measured takes 2 ms."""

    stream = None

    def empty(self, shape, dtype):
        return super().empty(shape, dtype).view(Array)

    def device_ms(self, enqueue, device, samples, queued):
        assert device is self and samples == 9 and queued
        enqueue()
        return 2.0


@pytest.fixture
def timed(monkeypatch):
    device = Timed(sms=1)
    monkeypatch.setattr(ceilings, "device_ms", device.device_ms)
    return device


def test_memory_is_measured_by_what_was_moved(timed):
    nbytes = 2**16 + 48
    found = measure_memory(timed, nbytes)
    assert found == {"copy_gb_s": round(4 * nbytes / 2e6), "read_gb_s": round(2 * nbytes / 2e6)}


def test_a_copy_that_is_none_is_found_out(timed, monkeypatch):
    monkeypatch.setattr(Array, "copy_from", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="is not what lay there"):
        measure_memory(timed, 2**12)


def test_what_was_measured_is_what_counts_from_then_on(tmp_path):
    slow = TensorRate("wgmma", "f16", "128x256", "sustained", 750.0, 1400.0, 699.0)
    fast, burst = replace(slow, tile="256x224", tops=760.0), replace(slow, regime="burst", watts=None)
    memory = {"copy_gb_s": 4100, "read_gb_s": 4500}
    path = write_ceilings("NVIDIA H200", memory, [slow, fast, burst], tmp_path)
    assert path.name == "ceilings-h200.json"
    found = ceilings_of("NVIDIA H200", tmp_path)
    assert (found.copy, found.read) == (4.1e12, 4.5e12) and "minfer ceilings" in found.source
    assert found.reached == (slow, fast, burst) and found.tensor == ceilings_of("NVIDIA H200").tensor
    assert found.tensor_cores("f16", "sustained") == fast and found.tensor_cores("f16", "burst") == burst
    assert found.tensor_cores("int8", "burst") is None
    found.check("a burst above what is sustained", Work(0.95e15, 1.0), 1.0)
    with pytest.raises(RecordError, match="does not know Matrox Millennium"):
        write_ceilings("Matrox Millennium", {}, [], tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kept: [], "an object is needed, not list"),
        (lambda kept: kept | {"copy_gb_s": "fast"}, "copy_gb_s: 'fast' is no float"),
        (lambda kept: {name: kept[name] for name in kept if name != "read_gb_s"}, "read_gb_s: missing"),
        (lambda kept: kept | {"read_gb_s": float("nan")}, "read_gb_s: nan is no finite number"),
        (lambda kept: kept | {"read_gb_s": -4000}, "read_gb_s: -4000, the datasheet's bandwidth is 4800"),
        (lambda kept: kept | {"copy_gb_s": 48_000}, "copy_gb_s: 48000, the datasheet's bandwidth"),
        (lambda kept: kept | {"device": "NVIDIA B200"}, "device: 'NVIDIA B200' in the file of"),
        (lambda kept: kept | {"tensor_cores": None}, "tensor_cores: None is no list"),
        (
            lambda kept: with_rate(kept, tops=1e9),
            r"tensor_cores\[0\].tops: 1e\+09, the datasheet",
        ),
        (lambda kept: with_rate(kept, tops=-1), r"tensor_cores\[0\].tops: -1"),
        (
            lambda kept: with_rate(kept, regime="x"),
            r"tensor_cores\[0\].regime: 'x' is none of burst",
        ),
        (lambda kept: with_rate(kept, watts=0), r"tensor_cores\[0\].watts: 0 is not above zero"),
    ],
)
def test_a_file_that_no_device_measured_is_refused(tmp_path, change, words):
    path = write_ceilings("NVIDIA H200", {"copy_gb_s": 4100, "read_gb_s": 4500}, [RATE], tmp_path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(RecordError, match=f"ceilings-h200.json: {words}"):
        ceilings_of("NVIDIA H200", tmp_path)


RATE = TensorRate("wgmma", "f16", "128x256", "sustained", 750.0, 1400.0, 699.0)


def with_rate(kept: dict, **fields: object) -> dict:
    return kept | {"tensor_cores": [kept["tensor_cores"][0] | fields]}


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = write_ceilings("NVIDIA H200", {"copy_gb_s": 4100, "read_gb_s": 4500}, [RATE], tmp_path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(RecordError, match=r"ceilings-h200\.json: .*minfer ceilings --record"):
        ceilings_of("NVIDIA H200", tmp_path)


@pytest.mark.parametrize("rates", [{}, {"copy_gb_s": float("nan"), "read_gb_s": 4000}])
def test_what_was_not_measured_is_not_kept(tmp_path, rates):
    with pytest.raises(RecordError, match="ceilings of NVIDIA H200 that are not kept"):
        write_ceilings("NVIDIA H200", rates, [], tmp_path)
    assert not list(tmp_path.iterdir())
