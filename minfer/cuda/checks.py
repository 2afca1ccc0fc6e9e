"""Refusals that several configs share."""

from __future__ import annotations

from minfer.cuda.kernel import ConfigRefused


def check_threads(family: str, threads: int) -> None:
    """Refuse a block that is not whole warps or over CUDA's limit."""
    if threads % 32 or not 32 <= threads <= 1024:
        raise ConfigRefused(f"{family}: {threads} threads a block; take a multiple of 32 from 32 to 1024")


def check_choice(family: str, field: str, value: object, choices: tuple) -> None:
    """Refuse a field's value that is none of `choices`."""
    if value not in choices:
        raise ConfigRefused(f"{family}: {field}={value!r}; the variants are {', '.join(map(str, choices))}")
