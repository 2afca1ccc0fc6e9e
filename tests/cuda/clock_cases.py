"""A launch of the clock's kernel with what it must leave."""

import numpy as np

from minfer.cuda.clock import SLOTS, read_clock
from tests.cuda.parity import Case


def clock_case(blocks: int) -> Case:
    """Every block writes a pair above 0, at least one multiprocessor has one, and nothing else changes."""

    def check(readings: np.ndarray) -> None:
        written = readings.any(axis=1)
        assert 1 <= written.sum() <= blocks and (readings[written] > 0).all()

    kernel = read_clock()
    readings = {"readings": np.zeros((SLOTS, 2), np.uint64)}
    return Case(kernel, kernel.config.grid(blocks), readings, {"readings": check}, name=f"{blocks} blocks")
