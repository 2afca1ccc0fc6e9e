"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minfer.model.errors import ModelFileError


@contextmanager
def whole_file(path: Path, nbytes: int, error: type[ModelFileError] = ModelFileError) -> Iterator[Path]:
    """A path to write `nbytes` to; what is there takes the name `path` when the block ends without an error.

    Until then its name ends in ".partial", and it is removed when the block fails or is interrupted. Raises
    `error` when the disk has too little room or the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # its own for every process that writes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        free = shutil.disk_usage(path.parent).free
        if free < nbytes:
            raise error(f"{path}: needs {nbytes / 1e6:,.1f} MB of disk, {free / 1e6:,.1f} MB are free")
        try:
            yield partial
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as problem:
        raise error(f"{path}: cannot be written: {problem.strerror or problem}") from None
