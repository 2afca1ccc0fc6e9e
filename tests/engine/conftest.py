"""Models and helpers that the engine's tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minfer.engine.host.runtime import HostBackend
from minfer.model.model import Model

DATA = Path(__file__).parent.parent / "data"
ORACLES = ("qwen2-k", "llama-legacy", "qwen3-k")


class Oracle:
    """A tiny model with the logits of 48 tokens that others computed (see data's README)."""

    def __init__(self, name: str):
        self.model = Model.load(DATA / f"{name}.gguf")
        values = np.load(DATA / f"{name}-logits.npz")
        self.ids = values["ids"]
        self.logits_f32 = values["logits_f32"]
        self.logits_llamacpp = values["logits_llamacpp"]


@pytest.fixture(scope="session")
def host() -> HostBackend:
    """The host backend, with two threads so that steps are shared out even on one core."""
    return HostBackend(threads=2)


@pytest.fixture(scope="session", params=ORACLES)
def oracle(request) -> Oracle:
    """Each oracle model in turn."""
    return Oracle(request.param)


@pytest.fixture(scope="session")
def tiny() -> Oracle:
    """One oracle model, where any will do."""
    return Oracle("qwen2-k")


def relative_rms(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a - b over that of b."""
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))
