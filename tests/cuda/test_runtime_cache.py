"""The disk cache: its keys, damage, and several writers."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from minfer.cuda import sources
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.runtime import cache
from minfer.cuda.runtime.cache import Unfingerprintable, cache_key, fingerprint

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_CACHE", str(tmp_path))
    return tmp_path


def make(n=3, helper=None):
    def kernel(out):
        out[0] = n if helper is None else helper(n)

    return kernel


@dataclass(frozen=True)
class Config:
    n: int = 3


def kernel_of(function, **changes):
    fields = {
        "name": "k",
        "config": Config(),
        "function": function,
        "signature": lambda: "void(int32*)",
        "threads": 32,
        "shared_bytes": 0,
        "arguments": (Argument("out", "out", "int32"),),
    }
    return Kernel(**(fields | changes))


class TestKeys:
    def test_same_content_same_key(self):
        assert cache_key(kernel_of(make()), "sm_80", False) == cache_key(kernel_of(make()), "sm_80", False)

    def test_what_changes_the_key(self):
        base = kernel_of(make())
        keys = {
            cache_key(base, "sm_80", False),
            cache_key(base, "sm_86", False),
            cache_key(base, "sm_80", True),
            cache_key(kernel_of(make(4)), "sm_80", False),
            cache_key(kernel_of(make(helper=lambda x: x + 1)), "sm_80", False),
            cache_key(kernel_of(make(helper=lambda x: x + 2)), "sm_80", False),
            cache_key(kernel_of(lambda out: None), "sm_80", False),
            *(
                cache_key(replace(base, **change), "sm_80", False)
                for change in (
                    {"threads": 64},
                    {"min_blocks": 2},
                    {"max_registers": 64},
                    {"fastmath": False},
                    {"config": Config(4)},
                    {"name": "other"},
                    {"signature": lambda: "void(float32*)"},
                )
            ),
        }
        assert len(keys) == 14 and None not in keys

    def test_lines_are_those_of_the_file_as_it_is_and_where_it_is(self, tmp_path):
        def key(path, text, lineinfo=True):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            linecache.checkcache()
            scope = {}
            exec(compile(text, str(path), "exec"), scope)
            return cache_key(kernel_of(scope["kernel"]), "sm_80", lineinfo)

        text = "def kernel(out):\n    out[0] = 1\n"
        here, there = tmp_path / "here" / "mine.py", tmp_path / "there" / "mine.py"
        assert len({key(here, text), key(there, text), key(here, "# moved\n" + text)}) == 3
        assert key(here, text, lineinfo=False) == key(there, "# moved\n" + text, lineinfo=False)

    def test_the_key_names_kernel_and_architecture(self):
        assert cache_key(kernel_of(make()), "sm_90a", False).startswith("k-sm_90a-")

    def test_globals_count(self):
        def function_with(value):
            scope = {"LIMIT": value}
            exec("def kernel(out):\n    out[0] = LIMIT", scope)
            return scope["kernel"]

        assert fingerprint(function_with(1)) != fingerprint(function_with(2))
        assert fingerprint(function_with(1)) == fingerprint(function_with(1))

    def test_something_without_content_is_not_kept(self):
        thing = object()
        with pytest.raises(Unfingerprintable):
            fingerprint(thing)
        assert cache_key(kernel_of(make(helper=thing)), "sm_80", False) is None

    def test_edited_sources_are_not_kept_under_the_code_in_memory(self, monkeypatch):
        """What was imported is older than what lies on disk: neither read nor written."""
        assert sources.changed() == [] and "gemm.py" in sources._AT_IMPORT
        assert not any(path.startswith(("trace/", "simulator/")) for path in sources._AT_IMPORT)
        monkeypatch.setitem(sources._AT_IMPORT, "gemm.py", (0, 0))
        monkeypatch.setitem(sources._AT_IMPORT, "removed.py", (0, 0))
        with pytest.warns(UserWarning, match=r"minfer/cuda/gemm.py and 1 more changed since.*restart"):
            assert cache_key(kernel_of(make()), "sm_80", False) is None

    def test_values(self):
        array = np.arange(4)
        assert fingerprint(array) != fingerprint(array + 1)
        assert fingerprint((1, [2, {"a": 3.5}])) == fingerprint((1, [2, {"a": 3.5}]))
        assert fingerprint({"b", "a"}) == fingerprint({"a", "b"})

    def test_a_function_that_calls_itself(self):
        def again(n):
            return again(n - 1) if n else 0

        assert "<again>" in fingerprint(again)

    def test_the_same_in_another_process(self):
        program = (
            "from minfer.cuda.convert import *\nfrom minfer.cuda.runtime.cache import cache_key\n"
            "print(cache_key(convert_f32_f16(ConvertConfig()), 'sm_90a', False))"
        )
        keys = set()
        for seed in ("1", "2"):
            environment = os.environ | {"PYTHONHASHSEED": seed}
            command = [sys.executable, "-c", program]
            reply = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
            )
            keys.add(reply.stdout.strip())
        assert len(keys) == 1 and keys.pop().startswith("convert_f32_f16-sm_90a-")


class TestFiles:
    def test_round_trip(self):
        members = {"meta.json": b"{}", "kernel.cubin": bytes(range(256)) * 100}
        cache.store("a", members)
        assert cache.load("a") == members
        assert cache.load("b") is None

    @pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * len(b)])
    def test_a_damaged_file_is_dropped(self, folder, damage):
        cache.store("a", {"kernel.cubin": bytes(10000)})
        path = folder / "a.zip"
        path.write_bytes(damage(path.read_bytes()))
        assert cache.load("a") is None
        assert not path.exists()

    def test_a_flipped_bit_is_noticed(self, folder):
        content = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8).tobytes()
        cache.store("a", {"kernel.cubin": content})
        data = bytearray((folder / "a.zip").read_bytes())
        data[500] ^= 1
        (folder / "a.zip").write_bytes(data)
        assert cache.load("a") is None

    def test_no_flipped_bit_is_another_error(self, folder):
        cache.store("a", {"x": b"content"})
        path = folder / "a.zip"
        whole = path.read_bytes()
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            found = cache.load("a")
            assert found is None or list(found.values()) == [b"content"]

    def test_a_folder_that_cannot_be_made_is_a_warning(self, folder, monkeypatch):
        (folder / "file").write_text("")
        monkeypatch.setenv("MINFER_CACHE", str(folder / "file"))
        with pytest.warns(UserWarning, match="set MINFER_CACHE to a folder that can") as warned:
            cache.store("a", {"x": b""})
            cache.store("b", {"x": b""})
        assert len(warned) == 1
        assert cache.load("a") is None

    def test_a_folder_in_place_of_a_file_is_named(self, folder):
        (folder / "a.zip").mkdir()
        with pytest.warns(UserWarning, match=r"a\.zip is a folder; remove it"):
            cache.store("a", {"x": b""})
        assert cache.load("a") is None

    def test_the_oldest_go_when_the_folder_is_full(self, folder, monkeypatch):
        monkeypatch.setattr(cache, "SIZE_LIMIT", 3500)
        for i in range(4):
            content = np.random.default_rng(i).integers(0, 256, 1000).astype(np.uint8).tobytes()
            cache.store(f"k{i}", {"x": content})
            os.utime(folder / f"k{i}.zip", (i, i))
        assert [cache.load(f"k{i}") is not None for i in range(4)] == [False, True, True, True]

    def test_a_file_that_another_process_removes_meanwhile_is_no_matter(self, folder, monkeypatch):
        scan = os.scandir

        def slow_scan(where):
            entries = list(scan(where))
            (folder / "other.zip").unlink(missing_ok=True)
            return entries

        (folder / "other.zip").write_bytes(b"")
        monkeypatch.setattr(cache.os, "scandir", slow_scan)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.store("a", {"x": b"1"})
        assert cache.load("a") == {"x": b"1"}

    def test_no_file_is_left_by_a_failed_write(self, folder):
        with pytest.raises(TypeError):
            cache.store("a", {"x": object()})
        assert list(folder.iterdir()) == []

    def test_two_processes_write_one_key(self, folder):
        """While two processes store the same key over and over, a reader sees nothing or a whole file."""
        program = (
            "import sys\nfrom minfer.cuda.runtime import cache\n"
            "letter = sys.argv[1].encode()\n"
            "for i in range(60): cache.store('k', {'a': letter * 20000, 'b': letter})"
        )
        command = [sys.executable, "-c", program]
        children = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "xy"]
        seen = set()
        while any(child.poll() is None for child in children):
            found = cache.load("k")
            if found is not None:
                assert found["a"] == found["b"] * 20000
                seen.add(found["b"])
        assert [child.returncode for child in children] == [0, 0]
        assert seen <= {b"x", b"y"} and cache.load("k") is not None
        assert [path.name for path in folder.iterdir()] == ["k.zip"]


def test_where_it_lies(monkeypatch):
    monkeypatch.delenv("MINFER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_folder() == Path("/xdg/minfer/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "minfer" / "kernels"
