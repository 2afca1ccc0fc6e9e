"""The choice of a backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minfer.engine import backend as module
from minfer.engine.backend import choose_backend
from minfer.engine.errors import EngineError, InputError


def test_host_can_be_asked_for():
    backend, reason = choose_backend("host")
    assert backend.name == "host" and reason == "host: asked for"
    assert "thread" in backend.describe()


def test_switches_of_the_cuda_backend_are_told_to_be_without_effect_on_the_host(monkeypatch):
    monkeypatch.setenv("MINFER_MMQ", "1")
    monkeypatch.setenv("MINFER_GEMM_K64", "0")
    _, reason = choose_backend("host")
    assert reason == "host: asked for (MINFER_MMQ: of the cuda backend, without effect here)"


def test_auto_falls_back_and_says_why_without_the_remedy(monkeypatch):
    monkeypatch.setattr(module, "_why_no_cuda", lambda: "no NVIDIA driver was found: install one; or not")
    backend, reason = choose_backend("auto")
    assert backend.name == "host" and reason == "host: no NVIDIA driver was found"


def test_cuda_without_a_gpu_is_one_sentence(monkeypatch):
    monkeypatch.setattr(module, "_why_no_cuda", lambda: "no NVIDIA driver was found")
    with pytest.raises(EngineError, match="cannot be used: no NVIDIA driver was found; use --backend host"):
        choose_backend("cuda")


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="'tpu' is unknown: choose one of auto, host, cuda"):
        choose_backend("tpu")
    for name in ("auto", "host", "cuda"):
        with pytest.raises(InputError, match="route 'f17' is unknown: choose one of auto, f16,"):
            choose_backend(name, route="f17")


def test_importing_the_engines_interfaces_is_light():
    """numba takes half a second to import: it waits until a backend is chosen."""
    code = (
        "import sys, minfer.engine.session, minfer.engine.generate, minfer.engine.backend;"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
