"""The GPU tests' summary record, without a GPU."""

from __future__ import annotations

import json

import pytest

from tests.gpu import record


def report(outcome: str, when: str = "call", longrepr=None) -> pytest.TestReport:
    return pytest.TestReport("tests/gpu/a.py::t", ("a.py", 0, "t"), {}, outcome, longrepr, when, duration=0.5)


@pytest.fixture
def fake(fake, monkeypatch):
    monkeypatch.setenv("MINFER_COMMIT", "abc")
    return fake


def test_the_worst_phase_is_the_outcome():
    assert (
        record.outcome_of([report("passed", "setup"), report("passed"), report("failed", "teardown")])
        == "failed"
    )
    assert record.outcome_of([report("skipped", "setup"), report("passed", "teardown")]) == "skipped"
    assert record.outcome_of([report("passed", "setup"), report("passed")]) == "passed"


def test_content(fake, tmp_path, monkeypatch):
    monkeypatch.delenv("MINFER_GPU_RECORD", raising=False)
    reports = {
        "tests/gpu/a.py::one": [report("passed")],
        "tests/gpu/a.py::two": [report("failed", longrepr=f"{tmp_path}/tests/a.py: assert 1 == 2")],
        "tests/gpu/b.py::three": [report("skipped", "setup", ("b.py", 3, "Skipped: no ncu"))],
    }
    path, content = record.write_record(reports, {"speed": 3.5}, tmp_path)
    assert json.loads(path.read_text()) == content
    assert path.parent == tmp_path / "data" / "records" / "h200"
    assert path.name == f"gpu-tests-{content['date'][:10]}.json"
    assert (content["passed"], content["failed"], content["skipped"]) == (1, 1, 1)
    assert content["commit"] == "abc" and content["device"] == "NVIDIA H200" and content["cuda"] == "13.0"
    assert content["files"] == {
        "tests/gpu/a.py": {"passed": 1, "failed": 1},
        "tests/gpu/b.py": {"skipped": 1},
    }
    assert content["failures"] == {"tests/gpu/a.py::two": "tests/a.py: assert 1 == 2"}
    assert content["skips"] == {"tests/gpu/b.py::three": "Skipped: no ncu"}
    assert content["measured"] == {"speed": 3.5} and content["seconds"] == 1.5


def test_long_failures_keep_both_ends():
    assert record.shortened("a" * 2000) == "a" * 2000
    text = record.shortened("first" + "a" * 3000 + "last")
    assert text.startswith("first") and text.endswith("last") and "... 1009 characters ..." in text


def test_a_given_path(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_GPU_RECORD", str(tmp_path / "deep" / "r.json"))
    path, _ = record.write_record({}, {}, tmp_path)
    assert path == tmp_path / "deep" / "r.json" and path.exists()
