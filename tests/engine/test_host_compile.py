"""The host kernels' cache on disk: damaged, full, not writable."""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config

from minfer.engine.host import compile as host_compile
from minfer.engine.host.compile import Kernel
from minfer.engine.host.simd import store_f32


def write_seven(part, parts, out):
    store_f32(out, np.float32(7.0))


def result() -> float:
    """What a freshly made kernel computes."""
    out = np.zeros(1, np.float32)
    kernel = Kernel(write_seven)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(kernel.address)(0, 1, out.ctypes.data)
    return out[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache directory of this test's own."""
    caches = host_compile.cache_directory, host_compile._usable_cache, host_compile._warn_not_kept
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(f"*write_seven*{pattern}"))


def test_the_code_is_kept(folder, monkeypatch):
    assert result() == 7
    assert files(folder, ".nbi") and files(folder, ".nbc")
    assert str(folder) == config.CACHE_DIR
    kept = files(folder, ".nbc")[0].stat().st_mtime_ns
    assert result() == 7
    assert files(folder, ".nbc")[0].stat().st_mtime_ns == kept


@pytest.mark.parametrize("pattern", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_cache_is_made_anew(folder, pattern, content):
    assert result() == 7
    for file in files(folder, pattern):
        file.write_bytes(file.read_bytes()[:60] if content is None else content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result() == 7
    assert files(folder, ".nbi") and files(folder, ".nbc")


def test_a_place_that_cannot_be_written_is_one_warning(folder, monkeypatch):
    blocked = folder / "file"
    blocked.write_bytes(b"")
    monkeypatch.setattr(config, "CACHE_DIR", str(blocked))
    with pytest.warns(UserWarning, match="compiled kernels are not kept.*set NUMBA_CACHE_DIR") as caught:
        assert result() == result() == 7
    assert len(caught) == 1


def test_no_home_directory(folder, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(UserWarning, match="Could not determine home directory"):
        assert result() == 7


def test_a_disk_that_fills_up(folder, monkeypatch):
    make = numba.cfunc

    def full(*args, cache, **options):
        if cache:
            raise OSError(28, "No space left on device")
        return make(*args, cache=cache, **options)

    monkeypatch.setattr(numba, "cfunc", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert result() == 7


def test_an_error_of_the_kernel_is_no_error_of_the_cache(folder, monkeypatch):
    def wrong(part, parts):
        return part + "text"

    assert result() == 7
    with pytest.raises(numba.core.errors.NumbaError):
        _ = Kernel(wrong).address
    assert files(folder, ".nbc")
