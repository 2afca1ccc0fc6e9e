"""Launches of the kernels that read and copy memory, with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.memory import MemoryConfig, copy_memory, read_memory
from tests.cuda.parity import Case, poisoned


def memory_cases(config: MemoryConfig, pieces: int, sms: int = 2) -> list[Case]:
    """The same words read and copied."""
    words = np.random.default_rng(pieces).integers(0, 2**32, (pieces, 4), np.uint32)
    grid = config.grid(sms)
    sums = reference.read_memory(words, grid[0] * config.threads)
    return [
        Case(
            factory(config),
            grid,
            {"words": words, name: poisoned(wanted.shape, np.uint32), "pieces": pieces},
            {name: wanted},
            name=f"pieces={pieces}",
        )
        for factory, name, wanted in ((read_memory, "sums", sums), (copy_memory, "target", words))
    ]
