"""The source files of minfer.cuda that decide what kernels compile to, as this process found them.

Code in memory is older than a file that was edited since; what it compiles to must not be kept as the new
file's. So the files' dates are noted when the package is imported, before any of them can be.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

_PACKAGE = Path(__file__).parent
# These do not reach the machine code: editing them must not cost a rebuild.
_NOT_CODE = (
    "simulator",
    "trace",
    "registry.py",
    "report.py",
    "precompile.py",
    "sources.py",
    "tensor_map_rules.py",
)
_IN_RUNTIME = ("compiler.py", "resources.py")


def _dates() -> dict[str, tuple[int, int]]:
    """Path within the package -> (date of change in ns, bytes). Every kernel that is loaded asks for it."""
    found, folders = {}, [""]
    for folder in folders:
        for entry in os.scandir(_PACKAGE / folder):
            path = folder + entry.name
            if path in _NOT_CODE or entry.name == "__pycache__":
                continue
            if entry.is_dir():
                folders.append(path + "/")
            elif entry.name.endswith(".py") and (folder != "runtime/" or entry.name in _IN_RUNTIME):
                stat = entry.stat()
                found[path] = (stat.st_mtime_ns, stat.st_size)
    return found


_AT_IMPORT = _dates()


def changed() -> list[str]:
    """The files that are not what they were when this process imported minfer.cuda."""
    now = _dates()
    return sorted(path for path in now.keys() | _AT_IMPORT.keys() if now.get(path) != _AT_IMPORT.get(path))


@functools.cache
def sources_hash() -> str:
    """A hash of the files' contents. Ask `changed` first."""
    digest = hashlib.sha256()
    for path in sorted(_AT_IMPORT):
        digest.update(path.encode() + b"\0" + (_PACKAGE / path).read_bytes() + b"\0")
    return digest.hexdigest()
