"""Models known by name: where they are kept."""

from __future__ import annotations

import os
from pathlib import Path

from minfer.model.errors import ModelFileError


def models_dir() -> Path:
    """$MINFER_MODELS, or ~/.cache/minfer/models."""
    return Path(os.environ.get("MINFER_MODELS") or Path.home() / ".cache" / "minfer" / "models")


def resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """The path of a model file: `path_or_name` when it is a file, else the pulled model of that name."""
    path = Path(path_or_name)
    if path.is_file():
        return path
    raise ModelFileError(f"{path}: no such file")
