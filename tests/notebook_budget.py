"""A pytest plugin: every notebook that nbval runs has so many seconds for all of its cells together.

    pytest -p tests.notebook_budget --nbval notebooks

A cell gets what the cells before it have left; nbval interrupts it when that is used up, and the test fails.
"""

from __future__ import annotations

import os
import time
from tempfile import TemporaryDirectory

import pytest

SECONDS = 120.0
"""What a reader without a GPU waits for a notebook at most."""
LEFT = pytest.StashKey[float]()
OWN = pytest.StashKey[TemporaryDirectory]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--notebook-seconds", type=float, default=SECONDS, help="for all cells of a notebook")


def pytest_configure(config: pytest.Config) -> None:
    """What a reader has made of the notebooks' own kernels is not what they are tested with."""
    own = config.stash[OWN] = TemporaryDirectory()
    os.environ["MINFER_OWN"] = own.name


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[OWN].cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    notebook, option = item.parent.stash, item.config.option
    left = notebook.setdefault(LEFT, option.notebook_seconds)
    option.nbval_cell_timeout = max(left, 0.1)
    began = time.monotonic()
    try:
        return (yield)
    finally:
        notebook[LEFT] = left - (time.monotonic() - began)
