"""What may be counted with."""

from __future__ import annotations

from numbers import Integral


def check_counts(least: int, **counts: object) -> None:
    """Refuse (ValueError) a count that is no whole number (64.0 is none), or below `least`."""
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or count < least:
            raise ValueError(f"{name} is {count!r}; it must be at least {least}, a whole number")
