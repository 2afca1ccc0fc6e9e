"""An error in a line, with the place in the reader's own code that it comes from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from minfer.cuda.trace import Place

PACKAGE = str(Path(__file__).parents[1])
STDLIB = sysconfig.get_path("stdlib")


def told(error: BaseException) -> str:
    """Type, message, and the line of the innermost code that is neither minfer's nor a library's, or else of
    where it was raised; unless the message names that line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = ([frame for frame in frames if _is_own(frame.filename)] or frames)[-1]
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if f"{Path(own.filename).name}:{own.lineno} " in words:
        return words
    return f"{words} ({Place(own.filename, own.lineno or 0, own.name)})"


def _is_own(file: str) -> bool:
    return "site-packages" not in file and not file.startswith((PACKAGE, STDLIB, "<"))
