"""How fast each MMQ route prefills the 7B, beside f16: measured for the record, never asserted. Skipped where
the 7B is not among the pulled models."""

from __future__ import annotations

import pytest

from minfer.engine.bench import bench
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.routes import MMQ_ROUTES
from minfer.lab.measured import find_model
from minfer.model.model import Model

TOKENS = 2048


@pytest.mark.parametrize("route", ["f16", *MMQ_ROUTES])
def test_prefill_of_the_7b(route, measure):
    path = find_model()
    if path is None:
        pytest.skip("the 7B is not among the pulled models")
    lines: list[str] = []
    backend = CudaBackend(route, on_plan=lines.append)
    (result,) = bench(Model.load(path), backend, prompts=[TOKENS], generations=[], repetitions=3)
    assert not [line for line in lines if "refused" in line]  # what is measured is what the route says
    measure(f"7B prefill of {TOKENS} tokens, {route}: tok/s", round(result.avg_ts))
