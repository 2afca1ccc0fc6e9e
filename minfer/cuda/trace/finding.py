"""What the race checker reports."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.cuda.trace.layout import Place


@dataclass(frozen=True)
class Finding:
    """One kind of fault between two places of the source, as first seen.

    Attributes:
        kind: "uninitialized read", "read before landing", "read-write race", "write-write race",
            "overwrites asynchronous read", "missing proxy fence" or "mbarrier race" (used by a thread for
            which its initialisation has not come before).
        space: "shared" or "global".
        address: first byte concerned. block, thread, place: the later access.
        other_thread, other_place: the earlier one, where there is one.
        count: how many accesses were found with this kind and these places.
    """

    kind: str
    space: str
    address: int
    block: int
    thread: int
    place: Place
    other_thread: int | None
    other_place: Place | None
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.space} {self.address:#x}, block {self.block} thread {self.thread}, {self.place}"
        text = f"{self.kind}: {where}"
        if self.other_place is not None:
            text += f"; thread {self.other_thread}, {self.other_place}"
        return text + (f" ({self.count} times)" if self.count > 1 else "")
