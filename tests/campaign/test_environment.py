"""What records say of the code and the machine."""

from __future__ import annotations

from types import SimpleNamespace

from minfer.campaign import environment


def test_commit_without_git(monkeypatch, tmp_path):
    monkeypatch.delenv("MINFER_COMMIT", raising=False)
    assert environment.commit_of(tmp_path) == "unknown"
    monkeypatch.setattr(
        environment.subprocess, "run", lambda *a, **k: (_ for _ in ()).throw(FileNotFoundError())
    )
    assert environment.commit_of(tmp_path) == "unknown" == environment.driver_package()


def test_commit_with_changes(monkeypatch, tmp_path):
    monkeypatch.delenv("MINFER_COMMIT", raising=False)
    said = {"rev-parse": "f00\n", "status": " M file\n"}

    def run(command, **_):
        return SimpleNamespace(stdout=said[command[3]], returncode=0)

    monkeypatch.setattr(environment.subprocess, "run", run)
    assert environment.commit_of(tmp_path) == "f00+changes"
    said["status"] = ""
    assert environment.commit_of(tmp_path) == "f00"


def test_an_environment_tells_versions_and_limits_and_no_names(monkeypatch):
    from minfer.cuda.runtime import toolchain

    monkeypatch.setattr(toolchain, "compiler_versions", lambda: {"ptxas": "13.0", "cuda_home": "/somewhere"})
    gpu = SimpleNamespace(arch="sm_90a", cuda_version="13.0", sms=132, l2_bytes=1, memory_bytes=2)
    found = environment.environment(gpu)
    assert found.versions["ptxas"] == "13.0" and "numpy" in found.versions
    assert "/somewhere" not in str(found)


def test_stamps(monkeypatch):
    monkeypatch.setenv("MINFER_COMMIT", "abc")
    monkeypatch.setattr(environment, "driver_package", lambda: "580.1")
    found = environment.stamps(SimpleNamespace(name="NVIDIA H200"))
    assert found["commit"] == "abc" and found["device"] == "NVIDIA H200" and found["date"].endswith("+00:00")
