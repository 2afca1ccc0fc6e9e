"""A device that tells how much memory was taken of it."""

from __future__ import annotations

from typing import Any

from minfer.engine.cuda.devices import DryDevice


class CountingDevice(DryDevice):
    """`taken`: bytes of every array, in their order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken: list[int] = []

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        array = super().empty(shape, dtype)
        self.taken.append(array.nbytes)
        return array
