"""Launches whose statuses nobody heeds, against a fake driver that refuses them."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.kernel import Argument
from minfer.cuda.runtime.sandbox import launch_unheeded
from tests.cuda import fake_driver
from tests.cuda.fake_driver import Status
from tests.cuda.test_runtime_launching import fake as fake  # the fixture
from tests.cuda.test_runtime_launching import make_kernel

KERNEL = make_kernel(arguments=(Argument("out", "out", "float32"),))
OVER = fake_driver.ATTRIBUTES["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] + 1024


@pytest.fixture
def loaded(fake):
    return runtime.load(KERNEL)


def test_both_refusals_are_reported_and_nothing_raises(fake, loaded, monkeypatch):
    refuse = lambda function, attribute, value: (Status.INVALID_VALUE,)  # noqa: E731
    monkeypatch.setattr(fake, "cuFuncSetAttribute", refuse, raising=False)
    fake.launch_status = [Status.INVALID_VALUE]
    out = runtime.to_device(np.full(3, np.nan, np.float32))
    said = launch_unheeded(loaded, OVER, (1, 1, 1), out)
    assert said.opt_in == said.launch == "CUDA_ERROR_INVALID_VALUE" and said.shared_bytes == OVER
    assert np.isnan(out.to_host()).all() and not fake.launched
    assert loaded.launches == 0 and runtime.launch_counts() == {}


def test_what_is_allowed_runs(fake, loaded):
    said = launch_unheeded(loaded, 1024, (2, 1, 1), runtime.empty(3, np.float32))
    assert said.opt_in == said.launch == "CUDA_SUCCESS"
    assert [(launch.grid, launch.shared) for launch in fake.launched] == [((2, 1, 1), 1024)]
