"""The token kernel's ladder: each step one change to the one before, a config that runs alone."""

from __future__ import annotations

from typing import Any

from minfer.cuda.token.config import MOST_SLOTS

_CHANGES: dict[str, dict[str, Any]] = {
    "barriers": {
        "exchange": "barrier",
        "spread": False,
        "early": 0,
        "lanes": 4,
        "ahead": 0,
        "prefetch": False,
        "spare": False,
        "spare_o": False,
        "in_flight": MOST_SLOTS,
        "quiet": MOST_SLOTS,
    },
    "spread records": {"spread": True},
    "tags": {"exchange": "tags"},
    "half awaited": {"early": 50},
    "two-bit tags": {"exchange": "bits"},
    "two lanes": {"lanes": 2},
    "all else ahead": {"prefetch": True},
    "who attends is spared": {"spare": True},
    "two in flight": {"in_flight": 2},
    "quiet exchanges": {"quiet": 1},
    "spared of o too": {"spare_o": True},
    "L2 in the gaps": {"ahead": 8},
}

TOKEN_STEPS: dict[str, dict[str, Any]] = {}
"""Fields of `minfer.cuda.token.TokenConfig`, by the step's name."""
for _name, _change in _CHANGES.items():
    TOKEN_STEPS[_name] = (list(TOKEN_STEPS.values())[-1] if TOKEN_STEPS else {}) | _change
LAST_STEP = list(TOKEN_STEPS)[-1]
"""The engine's."""
