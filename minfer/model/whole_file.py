"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minfer.model.errors import ModelFileError


@contextmanager
def whole_file(path: Path, nbytes: int, error: type[Exception] = ModelFileError) -> Iterator[Path]:
    """A path to write `nbytes` to; what is there takes the name `path` when the block ends without an error.

    Until then its name ends in ".partial", and it is removed when the block fails or is interrupted. A link
    is followed. Raises `error` when the disk has too little room or the file cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        if target.exists() and not target.is_file():  # renaming would replace a device or a pipe by a file
            raise OSError(None, "it is not a regular file")
        if target.parent.exists() and not target.parent.is_dir():
            raise NotADirectoryError(None, f"{target.parent} is no folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if free < nbytes:
            raise error(f"{path}: needs {nbytes / 1e6:,.1f} MB of disk, {free / 1e6:,.1f} MB are free")
        # its own for every process that writes
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            yield partial
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as problem:
        raise error(f"{path}: cannot be written: {problem.strerror or problem}") from None
