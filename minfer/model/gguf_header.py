"""A strict walker over a GGUF header: every count and length is checked before anything is built from it.

The layout is the GGUF specification's (ggml/docs/gguf.md), versions 2 and 3, little-endian:

    magic "GGUF" | u32 version | u64 tensor count | u64 key count
    key count    x  (string key | u32 value type | value)
    tensor count x  (string name | u32 n_dims | n_dims x u64 size | u32 tensor type | u64 offset)
    padding to general.alignment | tensor data

A string is a u64 length and that many UTF-8 bytes; an array is a u32 element type, a u64 count and the
elements. The walk takes time and memory in proportion to the bytes of the file, whatever its counts claim.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from minfer.model.errors import ModelFileError

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 64
MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: _U32,
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<B"),
    GGUFValueType.UINT64: _U64,
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_MIN_KEY_BYTES = 8 + 4 + 1  # an empty key, its type, a one-byte value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type, an offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    `shape` is in NumPy order (rows first: `(od, id)` for a weight matrix), `offset` counts bytes from the
    start of shard number `shard`, `nbytes` is the packed size.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    shard: int = 0

    @property
    def rows(self) -> int:
        """Number of rows: the product of all sizes but the last; 1 for a vector."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Packed bytes of one row."""
        return self.nbytes // self.rows

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ArraySpan:
    """Where an array lies in the file: element type, count, and the first byte of its elements."""

    type: GGUFValueType
    count: int
    start: int


class Metadata(Mapping[str, Any]):
    """The key-value part of a header as Python values. Arrays become lists when they are first asked for."""

    def __init__(self, path: str, buffer: mmap.mmap, values: dict[str, Any], types: dict[str, GGUFValueType]):
        self._path, self._buffer, self._values, self._types = path, buffer, values, types
        self._lists: dict[str, list[Any]] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, ArraySpan):
            return value
        if key not in self._lists:
            self._lists[key] = self._decode_array(key, value)
        return self._lists[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def type_of(self, key: str) -> GGUFValueType:
        """The value's type in the file (for an array: ARRAY)."""
        return self._types[key]

    def array_span(self, key: str) -> ArraySpan | None:
        """Element type and count of an array, which is not decoded for it; None for a scalar or a string."""
        value = self._values[key]
        return value if isinstance(value, ArraySpan) else None

    def _decode_array(self, key: str, span: ArraySpan) -> list[Any]:
        if span.type == GGUFValueType.STRING:
            return self._decode_strings(key, span)
        scalar = _SCALARS[span.type]
        dtype = np.dtype(scalar.format)
        values = np.frombuffer(self._buffer, dtype, span.count, span.start)
        if span.type == GGUFValueType.BOOL:
            if values.max(initial=0) > 1:
                raise ModelFileError(
                    f"{self._path}: metadata key {key!r} holds a bool that is neither 0 nor 1"
                )
            values = values.astype(bool)
        return values.tolist()

    def _decode_strings(self, key: str, span: ArraySpan) -> list[str]:
        buffer, position, length_at = self._buffer, span.start, _U64.unpack_from
        strings = []
        try:
            for _ in range(span.count):
                start = position + 8
                position = start + length_at(buffer, position)[0]
                strings.append(buffer[start:position].decode())
        except UnicodeDecodeError as error:
            raise ModelFileError(
                f"{self._path}: metadata key {key!r}, element {len(strings)}, is not UTF-8 ({error.reason})"
            ) from None
        return strings


@dataclass(frozen=True)
class Header:
    """A whole header: format version, metadata, tensors in file order, first byte of the tensor data."""

    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data_start: int


def read_header(path: str, buffer: mmap.mmap, shard: int = 0) -> Header:
    """Walk the header of the file mapped in `buffer`; raises ModelFileError naming `path` and the field."""
    walker = _Walker(path, buffer)
    version, n_tensors, n_keys = walker.preamble()
    metadata = walker.metadata(n_keys)
    alignment = _alignment(path, metadata)
    records = [walker.tensor() for _ in range(n_tensors)]
    data_start = -(-walker.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, kind, shape, nbytes, offset in records:
        if name in tensors:
            walker.fail(f"tensor {name!r} appears twice")
        if offset % alignment:
            walker.fail(f"tensor {name!r} has offset {offset}, not a multiple of the alignment {alignment}")
        start = data_start + offset
        if start + nbytes > len(buffer):
            walker.fail(
                f"tensor {name!r} reaches byte {start + nbytes:,}, past the end of the file at "
                f"{len(buffer):,}: it is truncated or its header is damaged"
            )
        tensors[name] = TensorInfo(name, kind, shape, nbytes, start, shard)
    _check_overlap(path, tensors)
    return Header(version, metadata, tensors, data_start)


def _alignment(path: str, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    value = metadata[key]
    if metadata.type_of(key) != GGUFValueType.UINT32 or value < 8 or value & (value - 1):
        raise ModelFileError(f"{path}: {key} is {value!r}; it must be a u32 power of two of at least 8")
    return value


def _check_overlap(path: str, tensors: dict[str, TensorInfo]) -> None:
    previous = None
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if previous and tensor.offset < previous.offset + previous.nbytes:
            raise ModelFileError(f"{path}: tensors {previous.name!r} and {tensor.name!r} overlap in the file")
        previous = tensor


class _Walker:
    """A position in the header; every read names the field that it is for."""

    def __init__(self, path: str, buffer: mmap.mmap):
        self.path, self.buffer, self.end, self.position = path, buffer, len(buffer), 0

    def fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {message}")

    def preamble(self) -> tuple[int, int, int]:
        """Magic, version and the two counts; returns (version, tensor count, key count)."""
        magic = self.buffer[:4]
        if magic != b"GGUF":
            self.fail(f"not a GGUF file: it starts with {magic!r}, not b'GGUF'")
        self.position = 4
        version = self.scalar(_U32, "version")
        if version and not version & 0xFFFF:
            self.fail("a big-endian GGUF file; only little-endian files are supported")
        if version not in VERSIONS:
            self.fail(f"GGUF version {version} is not supported (supported: {', '.join(map(str, VERSIONS))})")
        n_tensors = self.count("tensor count", _MIN_TENSOR_BYTES)
        n_keys = self.count("metadata key count", _MIN_KEY_BYTES)
        return version, n_tensors, n_keys

    def metadata(self, n_keys: int) -> Metadata:
        values: dict[str, Any] = {}
        types: dict[str, GGUFValueType] = {}
        for index in range(n_keys):
            key = self.string(f"metadata key {index} of {n_keys}", MAX_KEY_BYTES)
            if key in values:
                self.fail(f"metadata key {key!r} appears twice")
            field = f"metadata key {key!r}"
            types[key] = self.value_type(field)
            values[key] = self.value(types[key], field)
        return Metadata(self.path, self.buffer, values, types)

    def tensor(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int, int]:
        """One tensor record: (name, type, shape in NumPy order, packed bytes, offset in the data)."""
        name = self.string("a tensor's name", MAX_NAME_BYTES)
        field = f"tensor {name!r}"
        n_dims = self.scalar(_U32, field)
        if not 1 <= n_dims <= MAX_DIMS:
            self.fail(f"{field} has {n_dims} dimensions (supported: 1 to {MAX_DIMS})")
        sizes = [self.scalar(_U64, field) for _ in range(n_dims)]
        raw_type = self.scalar(_U32, field)
        offset = self.scalar(_U64, field)
        try:
            kind = GGMLQuantizationType(raw_type)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            names = ", ".join(kind.name for kind in GGML_QUANT_SIZES)
            self.fail(f"{field} has the unknown type {raw_type} (supported: {names})")
        shape = tuple(reversed(sizes))
        if 0 in shape:
            self.fail(f"{field} is empty: its shape is {shape}")
        if sizes[0] % block:
            self.fail(f"{field} has rows of {sizes[0]}, not a multiple of {kind.name}'s block of {block}")
        return name, kind, shape, prod(sizes) // block * block_bytes, offset

    def value_type(self, field: str) -> GGUFValueType:
        raw = self.scalar(_U32, field)
        try:
            return GGUFValueType(raw)
        except ValueError:
            self.fail(f"{field} has the unknown value type {raw} (supported: 0 to {max(GGUFValueType)})")

    def value(self, kind: GGUFValueType, field: str) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string(field)
        if kind == GGUFValueType.ARRAY:
            return self.array(field)
        value = self.scalar(_SCALARS[kind], field)
        if kind == GGUFValueType.BOOL:
            if value > 1:
                self.fail(f"{field} is a bool that is neither 0 nor 1 but {value}")
            return bool(value)
        return value

    def array(self, field: str) -> ArraySpan:
        """Step over an array, checking every length in it, and remember where it lies."""
        kind = self.value_type(field)
        if kind == GGUFValueType.ARRAY:
            self.fail(f"{field} is an array of arrays, which is not supported")
        size = 8 if kind == GGUFValueType.STRING else _SCALARS[kind].size
        count = self.count(f"{field}, array count", size)
        span = ArraySpan(kind, count, self.position)
        if kind != GGUFValueType.STRING:
            self.position += count * size
            return span
        # The hot loop of a cold start: a vocabulary is 150,000 strings or more.
        buffer, end, position, length_at = self.buffer, self.end, self.position, _U64.unpack_from
        for index in range(count):
            if position + 8 > end:
                self.truncated(f"{field}, element {index} of {count}")
            position += 8 + length_at(buffer, position)[0]
        if position > end:
            self.truncated(f"{field}, its last element")
        self.position = position
        return span

    def string(self, field: str, limit: int | None = None) -> str:
        length = self.scalar(_U64, field)
        if length > self.end - self.position:
            self.truncated(f"{field}, a string of {length:,} bytes")
        if limit is not None and length > limit:
            self.fail(f"{field} is {length:,} bytes long, over the limit of {limit:,}")
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"{field} is not UTF-8 ({error.reason})")

    def count(self, field: str, min_bytes: int) -> int:
        """A count of things of at least `min_bytes` each; more than the file could hold is an error."""
        count = self.scalar(_U64, field)
        if count > (self.end - self.position) // min_bytes:
            self.fail(
                f"{field} is {count:,}, more than the {self.end - self.position:,} bytes that follow could "
                "hold: the file is truncated or its header is damaged"
            )
        return count

    def scalar(self, layout: struct.Struct, field: str) -> Any:
        start = self.position
        if start + layout.size > self.end:
            self.truncated(field)
        self.position = start + layout.size
        return layout.unpack_from(self.buffer, start)[0]

    def truncated(self, field: str) -> NoReturn:
        self.fail(
            f"the file ends at byte {self.end:,}, inside {field}: it is truncated or its header is damaged"
        )
