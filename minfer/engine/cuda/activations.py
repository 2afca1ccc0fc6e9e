"""Activation buffers: memory that holds its rows in the form that the next kernel reads.

Forms: "f32" and "f16" matrices, "q8" records and "pad40" chunks (`minfer.cuda.q8`), and "panels" (f32
matrices of some columns each, one behind the other). Whoever writes a buffer notes its form; whoever reads it
asks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minfer.cuda.q8 import pad40_bytes, q8_record_bytes

_DTYPES = {"f32": np.float32, "f16": np.float16}
_ROW_BYTES = {"q8": q8_record_bytes, "pad40": pad40_bytes}


class Storage:
    """The memory of one buffer, `rows` by `columns`.

    Attributes:
        role: what it is in the forward.
        memory: uint8 array.
        form: the form of what is in it, None: nothing.
        parent: the storage that this one is some columns of.
    """

    def __init__(self, role: str, memory: Any, rows: int, columns: int, parent: Storage | None = None):
        self.role, self.memory, self.rows, self.columns, self.parent = role, memory, rows, columns, parent
        self.form: str | None = None
        self._parts: dict[tuple[int, int], Storage] = {}
        self._typed: dict[str, Any] = {}
        self._kept: dict[str, tuple[int, int, Any]] = {}

    def part(self, start: int, stop: int) -> Storage:
        """Columns start to stop as a matrix of its own. It lies in the same memory: either the whole is in
        use, or its parts are."""
        if (start, stop) not in self._parts:
            offset = 4 * self.rows * (self.columns - stop)
            memory = self.memory[offset : offset + 4 * self.rows * (stop - start)]
            self._parts[start, stop] = Storage(self.role, memory, self.rows, stop - start, self)
        return self._parts[start, stop]

    def mark(self, form: str) -> None:
        """Note what has been written."""
        self.form = form
        if self.parent is not None:
            self.parent.form = None
        for part in self._parts.values():
            part.form = None

    def matrix(self, form: str) -> Any:
        """All rows that fit in this form: an array (rows, columns), or (rows, bytes) for "q8" and "pad40"."""
        if form not in self._typed:
            width = _ROW_BYTES[form](self.columns) if form in _ROW_BYTES else self.columns
            dtype = np.dtype(_DTYPES.get(form, np.uint8))
            rows = min(self.rows, self.memory.nbytes // (width * dtype.itemsize))
            used = self.memory[: rows * width * dtype.itemsize]
            self._typed[form] = used.view(dtype).reshape(rows, width)
        return self._typed[form]

    def rows_as(self, form: str, start: int, stop: int) -> Any:
        """Rows start to stop of that. The last such array is kept: every layer of a pass asks for it."""
        kept = self._kept.get(form)
        if kept is None or kept[0] != start or kept[1] != stop:
            kept = self._kept[form] = start, stop, self.matrix(form)[start:stop]
        return kept[2]


class Activations:
    """Rows start to stop of a storage: a `minfer.engine.backend.Buffer`."""

    __slots__ = ("start", "stop", "storage")

    def __init__(self, storage: Storage, start: int, stop: int):
        self.storage, self.start, self.stop = storage, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: Any) -> Activations:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        start, stop, _ = rows.indices(len(self))
        first, last, _ = columns.indices(self.storage.columns)
        storage = self.storage
        if (first, last) != (0, storage.columns):
            storage = storage.part(first, last)
        return Activations(storage, self.start + start, self.start + max(start, stop))

    def matrix(self, form: str) -> Any:
        """These rows as an array of that form."""
        return self.storage.rows_as(form, self.start, self.stop)
