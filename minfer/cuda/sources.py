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
    """Path within the package -> (date of change in ns, bytes)."""
    found = {}
    for folder, _, names in os.walk(_PACKAGE):
        for name in names:
            path = Path(folder, name)
            parts = path.relative_to(_PACKAGE).parts
            aside = parts[0] in _NOT_CODE or (parts[0] == "runtime" and parts[-1] not in _IN_RUNTIME)
            if name.endswith(".py") and not aside:
                stat = path.stat()
                found["/".join(parts)] = (stat.st_mtime_ns, stat.st_size)
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
