"""A GGUF model on disk: one file or a set of shards, memory-mapped and read-only."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import numpy as np

from minfer.model.errors import ModelFileError
from minfer.model.gguf_header import Header, Metadata, TensorInfo, read_header
from minfer.model.quants import dequantize

__all__ = ["GGUFFile", "Metadata", "TensorInfo"]

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFFile:
    """An opened model file.

    paths     the files, in shard order
    version   GGUF version of the first file
    metadata  key -> Python value; arrays are decoded when asked for
    tensors   name -> TensorInfo, over all shards
    """

    def __init__(self, paths: list[Path], headers: list[Header], buffers: list[mmap.mmap]):
        self.paths = paths
        self.version = headers[0].version
        self.metadata: Metadata = headers[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        self._buffers = buffers
        for path, header in zip(paths, headers, strict=True):
            for name, tensor in header.tensors.items():
                if name in self.tensors:
                    first = paths[self.tensors[name].shard]
                    raise ModelFileError(f"{path}: tensor {name!r} is also in {first.name}")
                self.tensors[name] = tensor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map a model file. Any shard of a set (`NAME-00001-of-0000N.gguf`) opens the whole set.

        Raises ModelFileError for whatever is wrong with the file or with one of its shards.
        """
        path = Path(path)
        buffer = _map(path)
        header = read_header(str(path), buffer)
        count = _split_field(path, header, "split.count", default=1)
        if count <= 1:
            return cls([path], [header], [buffer])
        paths = _shard_paths(path, count)
        headers, buffers = [], []
        for index, shard_path in enumerate(paths):
            buffer = _map(shard_path)
            header = read_header(str(shard_path), buffer, shard=index)
            for key, expected in (("split.count", count), ("split.no", index)):
                value = _split_field(shard_path, header, key)
                if value != expected:
                    raise ModelFileError(
                        f"{shard_path}: {key} is {value}, not {expected}: it is no part of this set of shards"
                    )
            headers.append(header)
            buffers.append(buffer)
        total = _split_field(paths[0], headers[0], "split.tensors.count")
        found = sum(len(header.tensors) for header in headers)
        if found != total:
            raise ModelFileError(
                f"{paths[0]}: split.tensors.count is {total}, but the shards hold {found} tensors"
            )
        return cls(paths, headers, buffers)

    @property
    def nbytes(self) -> int:
        """Size on disk of all shards, bytes."""
        return sum(len(buffer) for buffer in self._buffers)

    def raw(self, name: str) -> np.ndarray:
        """The packed bytes of a tensor: uint8 (rows, row_bytes), a read-only view of the mapped file."""
        tensor = self._tensor(name)
        data = np.frombuffer(self._buffers[tensor.shard], np.uint8, tensor.nbytes, tensor.offset)
        return data.reshape(tensor.rows, tensor.row_bytes)

    def dequantized(self, name: str) -> np.ndarray:
        """A tensor as a new float32 array of its `shape`."""
        tensor = self._tensor(name)
        try:
            return dequantize(self.raw(name), tensor.type).reshape(tensor.shape)
        except ModelFileError as error:
            raise ModelFileError(f"tensor {name!r}: {error}").within(self.paths[tensor.shard]) from None

    def _tensor(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelFileError(f"{self.paths[0]}: tensor {name!r} is missing")
        return self.tensors[name]


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ModelFileError(f"{path}: not a GGUF file: it is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None


def _split_field(path: Path, header: Header, key: str, default: int | None = None) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise ModelFileError(f"{path}: {key} is {value!r}; a shard needs a whole number there")
    return value


def _shard_paths(path: Path, count: int) -> list[Path]:
    match = _SHARD_NAME.fullmatch(path.name)
    if not match or int(match["count"]) != count:
        raise ModelFileError(
            f"{path}: split.count is {count}, so the file's name must end in -0000N-of-{count:05d}.gguf"
        )
    paths = [
        path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)
    ]
    missing = next((shard for shard in paths if not shard.is_file()), None)
    if missing:
        raise ModelFileError(
            f"{missing}: this shard is missing; {path.name} is one of {count} and needs them all"
        )
    return paths
