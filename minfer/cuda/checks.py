"""Refusals that several configs share."""

from __future__ import annotations

from dataclasses import fields
from math import isnan
from typing import Any

from minfer.arithmetic.counts import is_whole
from minfer.cuda.kernel import ConfigRefused

INT32_MAX = 2**31 - 1
_KINDS = {
    "int": "whole number: give an int",
    "float": "number",
    "bool": "truth value: give True or False",
    "str": "name: give a str",
}


def check_types(family: str, config: Any) -> None:
    """Refuse a config with a field that is not what its annotation says (64.0 is no int, 1 no bool), or a
    number that is past int32 or is none.

    `config` is a dataclass, its annotations texts (`from __future__ import annotations`); fields that are
    no int, float, bool or str are left to the config.
    """
    for field in fields(config):
        value, (kind, _, optional) = getattr(config, field.name), field.type.partition(" | ")
        if kind not in _KINDS or (optional and value is None):
            continue
        fits = type(value).__name__ == kind or (kind == "float" and type(value) is int)
        if not fits or (kind == "float" and isnan(value)):
            raise ConfigRefused(f"{family}: {field.name} = {value!r} is no {_KINDS[kind]}")
        if kind == "int" and abs(value) > INT32_MAX:
            raise ConfigRefused(f"{family}: {field.name} = {value}; at most {INT32_MAX} (int32)")


def check_threads(family: str, threads: int) -> None:
    """Refuse a block that is not whole warps or over CUDA's limit."""
    if threads % 32 or not 32 <= threads <= 1024:
        raise ConfigRefused(f"{family}: {threads} threads a block; take a multiple of 32 from 32 to 1024")


def check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number (64.0 is none) from `least` to `most`."""
    if not is_whole(value) or value < least:
        raise ConfigRefused(f"{what}: {value!r}: must be a whole number, at least {least}")
    if most is not None and value > most:
        raise ConfigRefused(f"{what}: {value}: must be at most {most}")


def check_sizes(family: str, **sizes: object) -> None:
    """Refuse a size of a launch that is no whole number from 1 to what an int32 holds."""
    for name, size in sizes.items():
        check_whole(f"{family}: {name}", size, 1, INT32_MAX)


def blocks_for(what: str, items: int, each: int = 1, most: int = INT32_MAX) -> int:
    """Blocks for `items`, of which a block takes `each`; at least one, which then finds nothing to do.

    Refuses what is no number of items, or more than `most`.
    """
    check_whole(what, items, 0, most)
    return max(1, -(-items // each))


def check_choice(family: str, field: str, value: object, choices: tuple) -> None:
    """Refuse a field's value that is none of `choices`."""
    if value not in choices:
        raise ConfigRefused(f"{family}: {field}={value!r}; the variants are {', '.join(map(str, choices))}")
