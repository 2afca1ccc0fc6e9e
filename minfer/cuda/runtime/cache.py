"""Compiled kernels on disk, shared by processes.

One file a kernel, a zip (its members carry CRCs, so a torn or damaged file is noticed, dropped and built
again), written under a temporary name and renamed, so that readers see all of it or none. The key covers all
that decides the machine code: the sources of minfer.cuda, the kernel's own code, its config, the architecture
and the tools' versions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import json
import linecache
import os
import re
import tempfile
import types
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

from minfer.cuda import sources
from minfer.cuda.kernel import Kernel
from minfer.cuda.runtime.toolchain import compiler_versions

SIZE_LIMIT = 1 << 30  # bytes; the least recently written files go first


class Unfingerprintable(Exception):
    """A kernel refers to something whose content cannot be named, so that it must not be cached on disk."""


def cache_folder() -> Path:
    """`$MINFER_CACHE`, else `$XDG_CACHE_HOME/minfer/kernels`, else ~/.cache/minfer/kernels."""
    if chosen := os.environ.get("MINFER_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minfer" / "kernels"


def fingerprint(value: Any, _open: frozenset[int] = frozenset()) -> str:
    """A text that is the same in every process for the same content: constants, functions with what they
    close over and the globals that they name, numba types, instructions.

    Functions of minfer.cuda are named, not read: `minfer.cuda.sources` covers their text.

    Raises:
        Unfingerprintable: for an object that has no such text.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum, range)):
        return repr(value)
    if id(value) in _open:  # a recursive function or structure: named where it was first met
        return "<again>"
    inside = _open | {id(value)}
    if isinstance(value, (tuple, list)):
        return f"({','.join(fingerprint(v, inside) for v in value)})"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k!r}:{fingerprint(v, inside)}' for k, v in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(fingerprint(v, inside) for v in value))}}}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if isinstance(inner := getattr(value, "py_func", None), types.FunctionType):
        return f"{type(value).__qualname__} {_function(inner, inside)}"
    if dataclasses.is_dataclass(value):
        parts = (f"{f.name}={fingerprint(getattr(value, f.name), inside)}" for f in dataclasses.fields(value))
        return f"{type(value).__qualname__}({','.join(parts)})"
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # NumPy scalars and arrays
        return f"{value.dtype}{getattr(value, 'shape', ())}{hashlib.sha256(value.tobytes()).hexdigest()}"
    text = repr(value)
    if re.search(r" at 0x[0-9a-f]+", text):
        raise Unfingerprintable(f"{type(value).__qualname__} {text}")
    return f"{type(value).__qualname__} {text}"


def _function(function: types.FunctionType, inside: frozenset[int]) -> str:
    cells = function.__closure__ or ()
    closed = ",".join(
        f"{name}={fingerprint(cell.cell_contents, inside)}"
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    )
    if function.__module__ and function.__module__.startswith("minfer.cuda."):
        return f"{function.__module__}.{function.__qualname__}[{closed}]"
    named = ",".join(
        f"{name}={fingerprint(function.__globals__[name], inside)}"
        for name in sorted(_names(function.__code__))
        if name in function.__globals__
    )
    return f"{function.__qualname__}:{_code(function.__code__)}[{closed}|{named}|{function.__defaults__!r}]"


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _code(code: types.CodeType) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    body = repr((code.co_code, constants, code.co_names, code.co_varnames)).encode()
    return hashlib.sha256(body).hexdigest()


def _lines(function: types.FunctionType) -> str | bool:
    """What decides the lines that machine code is traced back to, beside the sources of minfer.cuda: of a
    function elsewhere its file, where it lies and all that stands in it."""
    if (function.__module__ or "").startswith("minfer.cuda."):
        return True
    file = function.__code__.co_filename
    return file + hashlib.sha256("".join(linecache.getlines(file)).encode()).hexdigest()


def cache_key(kernel: Kernel, arch: str, lineinfo: bool) -> str | None:
    """The file name under which `kernel` compiled for `arch` is kept; None where it must not be kept: its
    content cannot be named, or minfer's own files were edited since this process imported them."""
    if edited := sources.changed():
        _warn_edited(tuple(edited))
        return None
    try:
        content = {
            "sources": sources.sources_hash(),
            "name": kernel.name,
            "config": fingerprint(kernel.config),
            "function": fingerprint(kernel.function),
            "signature": str(kernel.signature()),
            "arguments": [(a.name, a.kind) for a in kernel.arguments],
            "limits": [kernel.threads, kernel.min_blocks, kernel.max_registers, kernel.cluster],
            "fastmath": kernel.fastmath,
            "arch": arch,
            "lineinfo": lineinfo and _lines(kernel.function),
            "versions": compiler_versions(),
        }
    except Unfingerprintable:
        return None
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{kernel.name}-{arch}-{digest[:32]}"


def holds(kernel: Kernel, arch: str) -> bool:
    """Whether `kernel` compiled for `arch` is kept here."""
    key = cache_key(kernel, arch, lineinfo=False)
    return key is not None and (cache_folder() / f"{key}.zip").exists()


def load(key: str) -> dict[str, bytes] | None:
    """The members stored under `key`, or None: absent, damaged (then deleted) or unreadable."""
    path = cache_folder() / f"{key}.zip"
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError:
        return None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, KeyError):
        path.unlink(missing_ok=True)
        return None
    except OSError:
        return None


def store(key: str, members: dict[str, bytes]) -> None:
    """Write `members` under `key`, atomically. A folder that cannot be written is a warning, not an error."""
    folder = cache_folder()
    target = folder / f"{key}.zip"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{key}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, data in members.items():
                    archive.writestr(name, data)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _prune(folder)
    except OSError as error:
        if target.is_dir():
            _warn_unkept(f"{target} is a folder; remove it")
        else:
            _warn_unkept(
                f"{folder} cannot be written ({error.strerror}); set MINFER_CACHE to a folder that can"
            )


@functools.cache
def _warn_edited(edited: tuple[str, ...]) -> None:
    more = f" and {len(edited) - 1} more" if len(edited) > 1 else ""
    warnings.warn(
        f"compiled kernels are not kept: minfer/cuda/{edited[0]}{more} changed since this process imported "
        "minfer; restart to use the new code and the cache",
        stacklevel=4,
    )


@functools.cache
def _warn_unkept(reason: str) -> None:
    warnings.warn(f"compiled kernels are not kept: {reason}", stacklevel=4)


def _prune(folder: Path) -> None:
    files = []
    for entry in os.scandir(folder):
        if entry.name.endswith(".zip"):
            with contextlib.suppress(FileNotFoundError):  # another process prunes too
                files.append((entry.stat(), entry.path))
    excess = sum(stat.st_size for stat, _ in files) - SIZE_LIMIT
    for stat, path in sorted(files, key=lambda item: item[0].st_mtime):
        if excess <= 0:
            break
        Path(path).unlink(missing_ok=True)
        excess -= stat.st_size
