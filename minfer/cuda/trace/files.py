"""A trace as two files: NAME.npz, its rows, and NAME.json, what they mean."""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from minfer.cuda.trace.layout import DTYPE, LaunchInfo, Place, TracedArray
from minfer.cuda.trace.ops import Op

VERSION = 1
_OPS = {op.name: int(op) for op in Op}


class TraceFileError(ValueError):
    """Files that are no trace, or a damaged one: names the file and what is wrong."""


def write_trace(
    path: str | os.PathLike[str],
    info: LaunchInfo | None,
    sites: Sequence[tuple[Place, ...]],
    table: np.ndarray,
) -> None:
    """Write both files; a suffix .npz or .json of the path is dropped."""
    rows, words = _files(path)
    description = {
        "format": "minfer trace",
        "version": VERSION,
        "rows": len(table),
        "ops": _OPS,
        "info": asdict(info) if info else None,
        "sites": [[[place.file, place.line, place.function] for place in site] for site in sites],
    }
    np.savez_compressed(rows, **{name: table[name] for name in DTYPE.names})
    words.write_text(json.dumps(description, indent=1))


def read_trace(
    path: str | os.PathLike[str],
) -> tuple[LaunchInfo | None, list[tuple[Place, ...]], np.ndarray]:
    """(launch, sites, rows of `DTYPE`) of what `write_trace` wrote.

    Raises:
        TraceFileError: a file cannot be read, is no trace, of another version, damaged, or of another trace
            than the other file.
    """
    rows, words = _files(path)
    try:
        description = json.loads(words.read_text())
        info, sites, count = _described(description)
    except (ValueError, RecursionError) as error:
        raise TraceFileError(f"{words} does not describe a trace: {error}") from None
    except OSError as error:
        raise TraceFileError(f"{words} cannot be read: {error.strerror}") from None
    try:
        with np.load(rows) as file:
            columns = {name: file[name] for name in DTYPE.names}
        return info, sites, _table(columns, info, len(sites), count)
    except _Wrong as error:
        raise TraceFileError(f"{rows} does not hold the rows of {words.name}: {error}") from None
    except OSError as error:
        raise TraceFileError(f"{rows} cannot be read: {error.strerror or error}") from None
    except KeyError as error:
        raise TraceFileError(f"{rows} does not hold the rows of a trace: {error.args[0]}") from None
    except (
        ValueError,
        TypeError,
        EOFError,
        RuntimeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        raise TraceFileError(f"{rows} does not hold the rows of a trace: no sound .npz file") from None


class _Wrong(ValueError):
    """What is wrong with a part of a file."""


def _files(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (".npz", ".json") else path
    return stem.with_name(stem.name + ".npz"), stem.with_name(stem.name + ".json")


def _described(description: Any) -> tuple[LaunchInfo | None, list[tuple[Place, ...]], int]:
    """(launch, sites, number of rows) from the JSON."""
    if not isinstance(description, dict) or description.get("format") != "minfer trace":
        raise _Wrong("no 'format': 'minfer trace'")
    if description.get("version") != VERSION or description.get("ops") != _OPS:
        raise _Wrong(
            f"it is of version {description.get('version')!r}, this is version {VERSION}: record it again"
        )
    chains = _of(list, description, "sites")
    sites = [
        tuple(_place(place, f"sites[{i}]") for place in _is(list, chain, f"sites[{i}]"))
        for i, chain in enumerate(chains)
    ]
    info = None
    if description.get("info") is not None:
        info = _info(_of(dict, description, "info"))
    return info, sites, _of(int, description, "rows")


def _info(values: dict) -> LaunchInfo:
    grid = tuple(_is(int, size, "grid", 1) for size in _of(list, values, "grid"))
    if len(grid) != 3:
        raise _Wrong(f"grid: {len(grid)} sizes, not 3")
    arrays = [_is(dict, array, "arrays") for array in _of(list, values, "arrays")]
    return LaunchInfo(
        kernel=_of(str, values, "kernel"),
        config=_of(str, values, "config"),
        grid=grid,
        threads=_of(int, values, "threads", 1),
        shared_bytes=_of(int, values, "shared_bytes"),
        cluster=_of(int, values, "cluster", 1),
        arrays=tuple(
            TracedArray(_of(str, array, "name"), _of(int, array, "address"), _of(int, array, "size"))
            for array in arrays
        ),
    )


def _place(values: Any, where: str) -> Place:
    if len(_is(list, values, where)) != len(fields(Place)):
        raise _Wrong(f"{where}: a place is a file, a line and a function, not {values!r}")
    file, line, function = values
    return Place(_is(str, file, where), _is(int, line, where), _is(str, function, where))


def _of(wanted: type, values: dict, name: str, least: int = 0) -> Any:
    """A member of a JSON object, of this type."""
    if name not in values:
        raise _Wrong(f"{name}: missing")
    return _is(wanted, values[name], name, least)


def _is(wanted: type, value: Any, where: str, least: int = 0) -> Any:
    if type(value) is not wanted or (wanted is int and value < least):
        least_words = f" from {least}" if wanted is int else ""
        raise _Wrong(f"{where}: {value!r} is no {wanted.__name__}{least_words}")
    return value


def _table(columns: dict[str, np.ndarray], info: LaunchInfo | None, sites: int, count: int) -> np.ndarray:
    """The rows, every column of its type and within what the description allows."""
    for name, column in columns.items():
        if column.dtype != DTYPE[name] or column.ndim != 1:
            raise _Wrong(f"{name}: {column.ndim} dimensions of {column.dtype}, not one of {DTYPE[name]}")
        if len(column) != count:
            raise _Wrong(f"{name}: {len(column)} rows, not {count}")
    if count and info is None:
        raise _Wrong("rows of no launch")
    blocks, threads = (math.prod(info.grid), info.threads) if info else (0, 0)
    limits = {"op": max(Op) + 1, "block": blocks, "thread": threads, "site": sites}
    table = np.empty(count, DTYPE)
    for name, column in columns.items():
        # `extra` is packed: any 64 bits.
        least, limit = int(name == "op"), limits.get(name, math.inf)
        if count and name != "extra" and not (least <= column.min() and column.max() < limit):
            raise _Wrong(
                f"{name}: {column.min()} to {column.max()}, must be from {least} and less than {limit}"
            )
        table[name] = column
    return table
