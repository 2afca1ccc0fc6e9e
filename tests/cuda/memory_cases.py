"""Launches of the kernel that reads memory, with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.memory import ReadMemoryConfig, read_memory
from tests.cuda.parity import Case, poisoned


def read_case(config: ReadMemoryConfig, pieces: int, sms: int = 2) -> Case:
    """Random words."""
    words = np.random.default_rng(pieces).integers(0, 2**32, (pieces, 4), np.uint32)
    grid = config.grid(sms)
    sums = reference.read_memory(words, grid[0] * config.threads)
    arguments = {"words": words, "sums": poisoned(sums.shape, np.uint32), "pieces": pieces}
    return Case(read_memory(config), grid, arguments, {"sums": sums}, name=f"pieces={pieces}")
