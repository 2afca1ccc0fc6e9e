"""From a Python function to a machine-code address, compiled on first use and cached on disk.

A kernel is a function `(part, parts, a0, a1, ...)` of int64 arguments (addresses, sizes, float bits): one
step of a `program.Program`. numba compiles it to a C function. The cache directory carries a hash of this
package's sources, because numba alone would not notice a change in a helper from another file, and it lies in
the user's cache directory, because an installed package may be read-only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import types as python_types
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
from numba.core import config, types
from numba.core.errors import NumbaError

# nnan and ninf stay off: masked scores are -inf, and a model that overflows must be seen to do so.
FAST = {"nsz", "arcp", "contract", "afn", "reassoc"}
MAX_ARGUMENTS = 16

helper = numba.njit(fastmath=FAST, error_model="numpy", forceinline=True)
"""Decorator of functions that kernels call: compiled into the kernel, never cached on their own."""


@cache
def cache_directory() -> Path:
    """Where compiled kernels are kept: $NUMBA_CACHE_DIR, or the user's cache directory, by source hash."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    base = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "minfer" / "host-kernels" / digest.hexdigest()[:16]


@cache
def _usable_cache() -> Path | None:
    """The cache directory; None, with a warning, where it cannot be written.

    Asked here because numba would then fall back to the directory of the sources.
    """
    try:
        folder = cache_directory()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError) as problem:  # RuntimeError: there is no home directory
        _warn_not_kept(str(problem))
        return None


@cache
def _warn_not_kept(reason: str) -> None:
    warnings.warn(
        f"compiled kernels are not kept, so every start compiles them anew ({reason}); "
        "set NUMBA_CACHE_DIR to a folder that can be written",
        stacklevel=2,
    )


class Kernel:
    """A kernel function and, once asked for, the address of its compiled code."""

    def __init__(self, function: Callable[..., None]):
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.argument_count = function.__code__.co_argcount - 2
        if not 0 <= self.argument_count <= MAX_ARGUMENTS:
            raise TypeError(
                f"kernel {self.__name__} has {self.argument_count} arguments, limit {MAX_ARGUMENTS}"
            )

    @cached_property
    def address(self) -> int:
        """Address of the compiled C function (from the disk cache, or compiled now: about a second).

        A damaged cache is thrown away and made anew; one that cannot be written is a warning.
        """
        folder = _usable_cache()
        try:
            self._compiled = self._compile(folder)
        except OSError as problem:  # the disk has become full
            _warn_not_kept(str(problem))
            self._compiled = self._compile(None)
        except NumbaError:
            raise
        except Exception:  # numba unpickles what it finds: a damaged file can raise anything
            if folder is None:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            self._compiled = self._compile(folder)
        return self._compiled.address

    def _compile(self, cache_folder: Path | None) -> Any:
        signature = types.void(*[types.int64] * (self.argument_count + 2))
        options = {"nopython": True, "fastmath": FAST, "error_model": "numpy"}
        previous = config.CACHE_DIR
        config.CACHE_DIR = str(cache_folder or previous)
        try:
            return numba.cfunc(signature, cache=cache_folder is not None, **options)(self.function)
        finally:
            config.CACHE_DIR = previous


def kernel(function: Callable[..., None]) -> Kernel:
    """Decorator: make a `Kernel` of a function `(part, parts, int64...)`."""
    return Kernel(function)


def specialise(function: Callable, name: str, **bindings: Any) -> python_types.FunctionType:
    """A copy of a plain function in which some global names are bound to something else.

    This is how one loop serves every block format. It is not a closure, since numba's cache cannot
    recognise a closure over compiled functions in another process; the new name keeps the cache entries
    apart.
    """
    copy = python_types.FunctionType(
        function.__code__, {**function.__globals__, **bindings}, name, function.__defaults__
    )
    copy.__qualname__ = name
    copy.__module__ = function.__module__
    copy.__doc__ = function.__doc__
    return copy
