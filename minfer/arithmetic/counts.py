"""What may be counted with."""

from __future__ import annotations

from numbers import Integral


def is_whole(value: object) -> bool:
    """Whether it is a whole number: an int, or NumPy's; no bool, and 64.0 is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_counts(least: int, **counts: object) -> None:
    """Refuse (ValueError) a count that is no whole number (64.0 is none), or below `least`."""
    for name, count in counts.items():
        if not is_whole(count) or count < least:
            raise ValueError(f"{name} is {count!r}; it must be at least {least}, a whole number")
