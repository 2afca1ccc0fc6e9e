"""Damaged trace files: every one is refused by one error that names the file and what is wrong."""

import json

import numpy as np
import pytest

from minfer.cuda.trace import LaunchInfo, Op, Place, Trace, TracedArray, TraceFileError
from minfer.cuda.trace.layout import DTYPE

ROWS = [(Op.LOAD_GLOBAL, 1, 31, 0, 0, 0, 4096, 4, 0), (Op.TMA_ISSUE, 0, 0, 0, 0, 1, 128, 64, -(1 << 62))]


@pytest.fixture
def path(tmp_path):
    """A sound trace, saved: two rows of a launch of 2 blocks of 32 threads, one site."""
    trace = Trace()
    arrays = (TracedArray("a", 4096, 64),)
    trace.begin(LaunchInfo("k", "plain", (2, 1, 1), 32, 0, 1, arrays))
    trace.sites, trace._rows = [(Place("k.py", 3, "k"),)], list(ROWS)
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t.json")
    assert loaded.info == trace.info and loaded.sites == trace.sites
    assert loaded.table.tolist() == trace.table.tolist()
    return tmp_path / "t"


def refused(path, message):
    with pytest.raises(TraceFileError, match=message):
        Trace.load(path)


def test_an_empty_trace(tmp_path):
    Trace().save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert loaded.info is None and len(loaded) == 0


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("format",), "other", "no 'format'"),
        (("version",), 0, "of version 0, this is version 1"),
        (("ops",), {}, "record it again"),
        (("rows",), ..., "rows: missing"),
        (("rows",), -1, "rows: -1 is no int from 0"),
        (("rows",), "2", "rows: '2' is no int"),
        (("rows",), 10**30, "op: 2 rows, not 10{30}"),
        (("rows",), True, "rows: True is no int"),
        (("sites",), None, "sites: None is no list"),
        (("sites",), [], "site: 0 to 0, must be from 0 and less than 0"),
        (("sites",), [3], r"sites\[0\]: 3 is no list"),
        (("sites",), [[["k.py", 3]]], r"sites\[0\]: a place is a file"),
        (("sites",), [[["k.py", "3", "k"]]], r"sites\[0\]: '3' is no int"),
        (("info",), None, "rows of no launch"),
        (("info",), [], r"info: \[\] is no dict"),
        (("info", "kernel"), ..., "kernel: missing"),
        (("info", "grid"), [2, 1], "grid: 2 sizes, not 3"),
        (("info", "grid"), [2, 0, 1], "grid: 0 is no int from 1"),
        (("info", "grid"), [1, 1, 1], "block: 0 to 1, must be from 0 and less than 1"),
        (("info", "threads"), 31, "thread: 0 to 31"),
        (("info", "threads"), 32.0, r"threads: 32\.0 is no int"),
        (("info", "arrays"), [{"name": "a", "address": float("nan"), "size": 1}], "address: nan is no int"),
    ],
)
def test_a_description_that_does_not_fit(path, keys, value, message):
    file = path.with_suffix(".json")
    description = json.loads(file.read_text())
    holder = description
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    if value is ...:
        del holder[keys[-1]]
    file.write_text(json.dumps(description))
    refused(path, rf"t\.(json|npz) does not .*{message}")


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("op", ..., "op"),
        ("op", [0, 3], "op: 0 to 3, must be from 1"),
        ("op", [3, 200], "op: 3 to 200"),
        ("site", [0, 1], "site: 0 to 1"),
        ("thread", [-1, 0], "thread: -1 to 0"),
        ("address", [4096, -8], "address: -8 to 4096"),
        ("width", [4], "width: 1 rows, not 2"),
        ("width", [[4], [4]], "width: 2 dimensions"),
        ("address", np.array([np.nan, 0.0]), "address: 1 dimensions of float64"),
        ("address", np.array([None, 0]), "no sound .npz file"),
    ],
)
def test_columns_that_do_not_fit(path, name, column, message):
    file = path.with_suffix(".npz")
    with np.load(file) as held:
        columns = dict(held)
    columns.pop(name)
    if column is not ...:
        columns[name] = column if isinstance(column, np.ndarray) else np.array(column, DTYPE[name])
    np.savez_compressed(file, **columns)
    refused(path, rf"t\.npz does not hold the rows of .*{message}")


@pytest.mark.parametrize("suffix", ["json", "npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"junk", b"PK\3\4junk", b"\xff" * 9, b"[" * 100_000],
    ids=lambda content: str(content[:9]),
)
def test_files_of_another_kind(path, suffix, content):
    path.with_suffix(f".{suffix}").write_bytes(content)
    refused(path, rf"t\.{suffix} does not")


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_files_that_cannot_be_read(path, suffix):
    file = path.with_suffix(f".{suffix}")
    file.unlink()
    refused(path, rf"t\.{suffix} cannot be read: No such file")
    file.mkdir()
    refused(path, rf"t\.{suffix} cannot be read: Is a directory")


def test_a_changed_byte_is_no_other_error(path):
    file = path.with_suffix(".npz")
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            loaded = Trace.load(path)
        except TraceFileError:
            continue
        assert loaded.table.tolist() == [tuple(map(int, row)) for row in ROWS]
