"""Which exceptions mean "bad input": their message is for the user, and the exit status is 2."""

from __future__ import annotations

import sys

_EXPECTED = {
    "minfer.model.errors": ("ModelFileError",),
    "minfer.model.chat": ("TemplateError",),
    "minfer.engine.errors": ("EngineError", "InputError"),
    "minfer.campaign.record": ("RecordError",),
    "minfer.campaign.probe": ("ProbeError",),
    "minfer.campaign.ceilings": ("AboveCeiling",),
    "minfer.campaign.launch_times": ("NotTimed",),
    "minfer.campaign.counters": ("NotCounted",),
    "minfer.cuda.kernel": ("ConfigRefused", "LaunchRefused", "NoDevice", "ToolchainError", "CompileError"),
}


def expected_errors() -> tuple[type[Exception], ...]:
    """The library's own errors, of the modules that are loaded (only those can have raised one)."""
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _EXPECTED.items()
        if module in sys.modules
        for name in names
    )
