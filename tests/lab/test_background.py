"""Compiles behind sliders: once, after a pause, cancelled when overtaken, with errors in words."""

import sys
import threading
import time

import pytest

from minfer.cuda.gemm import GemmConfig
from minfer.lab.background import BackgroundCompiler, described
from minfer.lab.compile_worker import compile_described, named
from minfer.lab.widgets import TileExplorer

A, B = GemmConfig(), GemmConfig(tile_m=128)
ANSWER = """
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"registers": request["fields"]["tile_m"], "spill_bytes": 0}))
"""
HELD = (
    """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
    + ANSWER
)
SLOW = "import time; time.sleep(60)"
ERROR = 'print(\'{"error": "no ptxas: install it"}\')'
CRASH = "raise SystemExit('the machine is on fire')"


class Recorder:
    """Collects notifications; `until` waits for one state."""

    def __init__(self):
        self.seen, self.changed = [], threading.Condition()

    def __call__(self, compilation):
        with self.changed:
            self.seen.append(compilation)
            self.changed.notify_all()

    def until(self, state, seconds=30):
        with self.changed:
            assert self.changed.wait_for(lambda: any(c.state == state for c in self.seen), seconds)
            return next(c for c in self.seen if c.state == state)


def compiler(script, delay=0.01):
    recorder = Recorder()
    return BackgroundCompiler("any:factory", recorder, delay, (sys.executable, "-c", script)), recorder


def test_request_then_done_then_known():
    compiler_, recorder = compiler(ANSWER)
    assert compiler_.request(A, "sm_90a").state == "waiting"
    done = recorder.until("done")
    assert (done.registers.count, done.registers.source) == (64, "ptxas, sm_90a")
    assert compiler_.request(A, "sm_90a") is done
    assert [c.state for c in recorder.seen] == ["compiling", "done"]
    assert compiler_.known(A, "sm_80") is None


def test_only_the_last_of_a_burst_is_compiled():
    compiler_, recorder = compiler(ANSWER, delay=60)
    for tile_m in (64, 128):
        compiler_.request(GemmConfig(tile_m=tile_m), "sm_90a")
    overtaken, compiler_.delay = compiler_._timer, 0.01
    compiler_.request(GemmConfig(tile_m=256), "sm_90a")
    assert overtaken.finished.is_set()  # it will not run
    assert recorder.until("done").registers.count == 256
    assert [c.state for c in recorder.seen] == ["compiling", "done"]


def test_a_running_compile_is_killed_when_overtaken():
    compiler_, recorder = compiler(SLOW)
    compiler_.request(A, "sm_90a")
    recorder.until("compiling")
    first = compiler_._process
    compiler_.command = (sys.executable, "-c", ANSWER)
    compiler_.request(B, "sm_90a")
    assert recorder.until("done").config == B
    assert first.wait(timeout=30) != 0
    assert compiler_.known(A, "sm_90a") is None


def test_cancel():
    compiler_, recorder = compiler(SLOW)
    compiler_.request(A, "sm_90a")
    recorder.until("compiling")
    compiler_.cancel()
    assert str(recorder.until("cancelled")) == "compile for sm_90a cancelled"
    compiler_.cancel()
    assert [c.state for c in recorder.seen].count("cancelled") == 1


@pytest.mark.parametrize(
    ("script", "words"), [(ERROR, "no ptxas: install it"), (CRASH, "the machine is on fire")]
)
def test_failures_are_sentences(script, words):
    compiler_, _ = compiler(script)
    failed = compiler_.compile_now(A, "sm_90a")
    assert (failed.state, failed.error, failed.registers) == ("failed", words, None)
    assert str(failed) == f"not compiled for sm_90a: {words}"


def test_configs_travel_as_json():
    request = described(B)
    assert request["type"] == "minfer.cuda.gemm_config:GemmConfig" and request["fields"]["tile_m"] == 128
    assert named(request["type"])(**request["fields"]) == B
    with pytest.raises(TypeError, match="a kernel config is a dataclass"):
        described("64x64")


def test_the_worker_compiles_the_real_kernel():
    answer = compile_described({"factory": "minfer.cuda.gemm:make_gemm", "arch": "sm_90a", **described(A)})
    assert 32 <= answer["registers"] <= 128
    assert answer["spill_bytes"] == 0


def test_the_worker_answers_refusals():
    request = {"factory": "minfer.cuda.gemm:make_gemm", "arch": "sm_90a", **described(A)}
    request["fields"] = {**request["fields"], "stages": 1}
    assert "at least 2" in compile_described(request)["error"]


def test_the_explorer_shows_estimates_then_the_compiled_registers(monkeypatch, tmp_path):
    answer = tmp_path / "answer"
    command = (sys.executable, "-c", HELD, answer)
    monkeypatch.setattr(
        "minfer.lab.widgets.BackgroundCompiler",
        lambda factory, notify: BackgroundCompiler(factory, notify, 0.01, command),
    )
    answer.touch()
    explorer = TileExplorer()
    assert "128 (ptxas, sm_121a)" in explorer.panel.value
    answer.unlink()
    explorer.set(tile_m=64)
    assert "(estimate)" in explorer.panel.value
    assert explorer.status.cancel.layout.display == "" and "<progress" in explorer.status.text.value
    answer.touch()
    deadline = time.monotonic() + 60
    while "64 (ptxas, sm_121a)" not in explorer.panel.value and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "64 (ptxas, sm_121a)" in explorer.panel.value
    assert explorer.status.cancel.layout.display == "none"
    assert explorer.status.text.value == "<small>compiled for sm_121a</small>"
