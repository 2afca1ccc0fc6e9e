"""What a record says of the code and the machine: commit, driver, versions, limits of the GPU."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from minfer.campaign.record import Environment

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("minfer", "numba", "numba-cuda", "numpy", "cuda-bindings", "cupti-python")


def now() -> str:
    """The time, as records keep it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit_of(root: Path = ROOT) -> str:
    """`$MINFER_COMMIT`, else git's HEAD (with "+changes" where tracked files differ), else "unknown"."""
    if given := os.environ.get("MINFER_COMMIT"):
        return given
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+changes" if changed.strip() else head


def driver_package() -> str:
    """The driver package's version, "580.159.03", as nvidia-smi says it; "unknown" without it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = reply.stdout.strip().splitlines()
    return lines[0] if reply.returncode == 0 and lines else "unknown"


def environment(gpu: Any) -> Environment:
    """Of a GPU (`minfer.cuda.runtime.Gpu`) and this process."""
    from minfer.cuda.runtime.toolchain import compiler_versions

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue  # optional, or minfer is run from its sources
    compilers = {name: str(found) for name, found in compiler_versions().items() if name != "cuda_home"}
    return Environment(
        arch=gpu.arch,
        cuda=gpu.cuda_version,
        python=platform.python_version(),
        sms=gpu.sms,
        l2_bytes=gpu.l2_bytes,
        memory_bytes=gpu.memory_bytes,
        versions=compilers | versions,
    )


def stamps(gpu: Any) -> dict[str, str]:
    """The fields that every record has, of a measurement made now."""
    return {
        "file": "",
        "date": now(),
        "commit": commit_of(),
        "device": gpu.name,
        "driver": driver_package(),
    }
