"""A driver for tests that have none."""

from __future__ import annotations

import pytest

from tests.cuda import fake_driver


@pytest.fixture
def fake(monkeypatch):
    """The fake driver, installed: one H200."""
    yield fake_driver.install(monkeypatch)
    fake_driver.uninstall()
