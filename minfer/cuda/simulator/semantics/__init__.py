"""What every PTX instruction does, in plain Python: `SEMANTICS[name](*operands, **parameters)`.

Operands and results are Python integers (masked to the register's width) and NumPy float32 scalars.
Functions that touch memory or other lanes act for the lane that calls them, inside
`minfer.cuda.simulator.launch`.
"""

from minfer.cuda.simulator.semantics import (
    arithmetic,
    copies,
    counters,
    mbarrier,
    memory,
    tensor,
    warp,
    wgmma,
)
from minfer.cuda.simulator.semantics.table import SEMANTICS, semantics_of

__all__ = [
    "SEMANTICS",
    "arithmetic",
    "copies",
    "counters",
    "mbarrier",
    "memory",
    "semantics_of",
    "tensor",
    "warp",
    "wgmma",
]
