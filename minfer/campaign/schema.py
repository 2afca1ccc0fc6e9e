"""Records as JSON and back: every field of a dataclass checked against its annotation."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def build(cls: type, values: Mapping[str, Any], where: str = "") -> Any:
    """An instance of a dataclass from JSON values.

    Raises:
        ValueError: "field: what is wrong" for one that is missing, unknown or of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    for name in values:
        if name not in known:
            raise ValueError(f"{where}{name}: no such field")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}{name}: missing")
    return cls(**{name: _value(value, hints[name], f"{where}{name}") for name, value in values.items()})


def plain(value: Any) -> Any:
    """A dataclass, or what it holds, as JSON has it.

    Raises:
        ValueError: something that JSON does not have, NaN and infinity among them.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no finite number")
    if isinstance(value, str) and not _is_unicode(value):
        raise ValueError(f"{value!a} is no Unicode text")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    raise ValueError(f"JSON has no {type(value).__name__}")


def _value(value: Any, hint: Any, where: str) -> Any:
    """`value` if it is of the annotated type; a list's and a dict's members too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):  # X | None
        wanted = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _value(value, wanted[0], where)
    if is_dataclass(hint):
        return build(hint, _is(value, dict, where), f"{where}.")
    if origin is list:
        members = _is(value, list, where)
        return [_value(member, arguments[0], f"{where}[{i}]") for i, member in enumerate(members)]
    if origin is dict:
        members = _is(value, dict, where)
        return {key: _value(member, arguments[1], f"{where}[{key!r}]") for key, member in members.items()}
    return _is(value, hint, where)


def _is(value: Any, wanted: type, where: str) -> Any:
    allowed = (int, float) if wanted is float else (wanted,)
    if isinstance(value, bool) is not (wanted is bool) or not isinstance(value, allowed):
        raise ValueError(f"{where}: {value!r} is no {wanted.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} is no finite number")
    if isinstance(value, str) and not _is_unicode(value):
        raise ValueError(f"{where}: {value!a} is no Unicode text")
    if isinstance(value, int) and abs(value) >= 2**63:  # sums and rates of them would not be floats
        raise ValueError(f"{where}: a number of {len(str(abs(value)))} digits: 64 bits hold 18")
    return value


def _is_unicode(text: str) -> bool:
    """Whether a file can hold it: half of a surrogate pair, which JSON can spell, is no character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
