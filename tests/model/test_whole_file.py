"""Files that are written whole or not at all."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from minfer.model.errors import ModelFileError, PullError
from minfer.model.whole_file import whole_file


def test_the_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "m.gguf"
    with whole_file(path, 3) as partial:
        assert partial.name == f"m.gguf.{os.getpid()}.partial"
        partial.write_bytes(b"abc")
        assert not path.exists()
    assert path.read_bytes() == b"abc"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_file_is_removed_and_an_old_one_kept(tmp_path, problem):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    with pytest.raises(problem), whole_file(path, 3) as partial:
        partial.write_bytes(b"ab")
        raise problem
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_clear_line(tmp_path):
    path = tmp_path / "m.gguf"
    with pytest.raises(PullError) as caught, whole_file(path, 1, PullError) as partial:
        partial.write_bytes(b"a")
        raise OSError(28, "No space left on device")
    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert not list(tmp_path.iterdir())


def test_too_little_room_is_found_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_500_000))
    with pytest.raises(ModelFileError) as caught, whole_file(tmp_path / "m.gguf", 4_700_000_000):
        pytest.fail("the block must not run")
    assert str(caught.value) == f"{tmp_path}/m.gguf: needs 4,700.0 MB of disk, 1.5 MB are free"


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "file" / "m.gguf", ".*/file is no folder"),
        (tmp_path, "it is a directory"),
        (Path(""), "it is a directory"),
        (tmp_path / "pipe", "it is not a regular file"),
        (Path("/dev/null"), "it is not a regular file"),
    ):
        with pytest.raises(ModelFileError, match=f"cannot be written: ({reason})"), whole_file(path, 1):
            pytest.fail("the block must not run")


def test_a_link_is_followed(tmp_path):
    target, link = tmp_path / "there" / "m.gguf", tmp_path / "link.gguf"
    link.symlink_to(target)
    with whole_file(link, 1) as partial:
        partial.write_bytes(b"a")
    assert link.is_symlink() and target.read_bytes() == b"a"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    refused = pytest.raises(ModelFileError, match="cannot be written: Permission denied")
    with refused, whole_file(tmp_path / "m.gguf", 1) as partial:
        partial.write_bytes(b"a")
