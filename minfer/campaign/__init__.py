"""Probes, gates, interleaved A/B, wall decomposition and records.

What a probe's file needs is here: `Probe`, `Prediction`, `Workload`, `Case`, `Launch`, `Work`, `kernel`. The
names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minfer.campaign.probe import Prediction, Probe
    from minfer.campaign.workload import Case, Launch, Work, Workload, kernel

_MODULE = {"Prediction": "probe", "Probe": "probe"} | dict.fromkeys(
    ("Case", "Launch", "Work", "Workload", "kernel"), "workload"
)

__all__ = ["Case", "Launch", "Prediction", "Probe", "Work", "Workload", "kernel"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE[name]}"), name)
    globals()[name] = value
    return value
