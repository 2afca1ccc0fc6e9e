"""Refusals that several configs share."""

from __future__ import annotations

from numbers import Integral

from minfer.cuda.kernel import ConfigRefused


def check_threads(family: str, threads: int) -> None:
    """Refuse a block that is not whole warps or over CUDA's limit."""
    if threads % 32 or not 32 <= threads <= 1024:
        raise ConfigRefused(f"{family}: {threads} threads a block; take a multiple of 32 from 32 to 1024")


def check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number (64.0 is none) from `least` to `most`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ConfigRefused(f"{what}: {value!r}: must be a whole number, at least {least}")
    if most is not None and value > most:
        raise ConfigRefused(f"{what}: {value}: must be at most {most}")


def check_choice(family: str, field: str, value: object, choices: tuple) -> None:
    """Refuse a field's value that is none of `choices`."""
    if value not in choices:
        raise ConfigRefused(f"{family}: {field}={value!r}; the variants are {', '.join(map(str, choices))}")
