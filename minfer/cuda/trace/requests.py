"""Bank conflicts and sectors, from the addresses that the warps of a traced launch really asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from minfer.arithmetic import banks
from minfer.cuda.trace.layout import Place
from minfer.cuda.trace.ops import Op
from minfer.cuda.trace.recorder import Trace

_WARP = 32
# Not cp.async: its data are written as they arrive, sector by sector, which lanes and phases do not describe.
_BANKED = (Op.LOAD_SHARED, Op.STORE_SHARED, Op.LDMATRIX, Op.STMATRIX)
_GLOBAL = (Op.LOAD_GLOBAL, Op.STORE_GLOBAL, Op.COPY_READ)


@dataclass(frozen=True)
class Request:
    """One execution of a memory instruction by a warp.

    Attributes:
        op, site: what and where. block, warp: who.
        lanes: lanes that take part, ascending. addresses: one address a lane of `lanes`.
        width: bytes a lane (16 for the row of an ldmatrix). matrices: of an ldmatrix or stmatrix, else 0.
    """

    op: Op
    site: int
    block: int
    warp: int
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    width: int
    matrices: int


@dataclass(frozen=True)
class SharedLine:
    """Shared-memory requests of one instruction in the source.

    Attributes:
        place: its line. chain: the lines that lead there, innermost first.
        op, width: what it does and the bytes a lane.
        requests: executions by a warp.
        wavefronts: passes through the banks; ideal: what they would take without conflicts.
        degree: the worst conflict degree (1: none).
    """

    place: Place
    chain: tuple[Place, ...]
    op: Op
    width: int
    requests: int
    wavefronts: int
    ideal: int
    degree: int

    @property
    def conflicts(self) -> int:
        """Passes that conflicts cost."""
        return self.wavefronts - self.ideal


@dataclass(frozen=True)
class GlobalLine:
    """Global-memory requests of one instruction in the source.

    Attributes:
        place, chain, op, width, requests: as in `SharedLine`.
        sectors: 32-byte sectors moved. bytes_used: distinct bytes that lanes asked for, request by request.
    """

    place: Place
    chain: tuple[Place, ...]
    op: Op
    width: int
    requests: int
    sectors: int
    bytes_used: int

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / self.requests

    @property
    def efficiency(self) -> float:
        """Bytes asked for over bytes moved, 0 to 1."""
        return self.bytes_used / (self.sectors * banks.SECTOR_BYTES)


def requests(trace: Trace, *ops: Op) -> Iterator[Request]:
    """The memory requests of warps, ordered by block, warp and site; of all memory ops if none is named."""
    rows = trace.rows(*(ops or (*_BANKED, Op.COPY_ISSUE, *_GLOBAL)))
    warp = rows["thread"] // _WARP
    keys = (
        rows["width"], rows["occurrence"], rows["sync"], rows["op"], rows["site"], warp, rows["block"],
    )  # fmt: skip
    order = np.lexsort((rows["thread"], *keys))
    rows = rows[order]
    if not len(rows):
        return
    changed = np.zeros(len(rows), bool)
    changed[0] = True
    for key in keys:
        values = key[order]
        changed[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(changed).tolist()
    for first, last in zip(starts, [*starts[1:], len(rows)], strict=True):
        group = rows[first:last]
        head = group[0]
        op = Op(int(head["op"]))
        yield Request(
            op=op,
            site=int(head["site"]),
            block=int(head["block"]),
            warp=int(head["thread"]) // _WARP,
            lanes=tuple((group["thread"] % _WARP).tolist()),
            addresses=tuple(group["address"].tolist()),
            width=int(head["width"]),
            matrices=int(head["extra"]) if op in (Op.LDMATRIX, Op.STMATRIX) else 0,
        )


def bank_request(request: Request) -> banks.BankRequest:
    """The banks that a shared-memory request uses.

    Raises:
        ValueError: the request is none that the bank model describes (global memory, or cp.async's writes).
    """
    if request.op not in _BANKED:
        raise ValueError(
            f"the bank model describes {', '.join(op.name for op in _BANKED)}, not {request.op.name}"
        )
    return _bank_request(request.lanes, _relative(request.addresses), request.width, request.matrices)


def _relative(addresses: tuple[int, ...]) -> tuple[int, ...]:
    """Addresses less a multiple of 128: same banks and sectors, and requests of one shape become equal."""
    base = min(addresses) // banks.LINE_BYTES * banks.LINE_BYTES
    return tuple(address - base for address in addresses)


@functools.lru_cache(maxsize=4096)
def _bank_request(
    lanes: tuple[int, ...], addresses: tuple[int, ...], width: int, matrices: int
) -> banks.BankRequest:
    if matrices:
        return banks.ldmatrix_request(addresses, matrices)
    where, active = _all_lanes(lanes, addresses)
    return banks.shared_request(where, width=width, active=active)


def _all_lanes(lanes: tuple[int, ...], addresses: tuple[int, ...]) -> tuple[list[int], list[bool]]:
    where, active = [0] * _WARP, [False] * _WARP
    for lane, address in zip(lanes, addresses, strict=True):
        where[lane], active[lane] = address, True
    return where, active


@functools.lru_cache(maxsize=4096)
def _global_request(lanes: tuple[int, ...], addresses: tuple[int, ...], width: int) -> banks.GlobalRequest:
    where, active = _all_lanes(lanes, addresses)
    return banks.global_request(where, width=width, active=active)


def shared_lines(trace: Trace, *ops: Op) -> list[SharedLine]:
    """Bank conflicts per instruction of the source, the most costly first.

    The writes of cp.async are left out: an H200 counts other wavefronts for them than any order of lanes
    explains (data/reference/banks-h200.json). Asked for as one of `ops`, they raise ValueError.
    """
    lines: dict[tuple[int, Op, int], list[int]] = {}
    for request in requests(trace, *(ops or _BANKED)):
        bank = bank_request(request)
        line = lines.setdefault((request.site, request.op, request.width), [0, 0, 0, 0])
        line[0] += 1
        line[1] += bank.wavefronts
        line[2] += bank.wavefronts - bank.conflicts
        line[3] = max(line[3], bank.degree)
    found = [
        SharedLine(trace.place(site), trace.sites[site], op, width, *numbers)
        for (site, op, width), numbers in lines.items()
    ]
    return sorted(found, key=lambda line: (-line.conflicts, -line.wavefronts, str(line.place)))


def global_lines(trace: Trace, *ops: Op) -> list[GlobalLine]:
    """Sectors per instruction of the source, the most traffic first."""
    lines: dict[tuple[int, Op, int], list[int]] = {}
    for request in requests(trace, *(ops or _GLOBAL)):
        moved = _global_request(request.lanes, _relative(request.addresses), request.width)
        line = lines.setdefault((request.site, request.op, request.width), [0, 0, 0])
        line[0] += 1
        line[1] += moved.sectors
        line[2] += moved.bytes_used
    found = [
        GlobalLine(trace.place(site), trace.sites[site], op, width, *numbers)
        for (site, op, width), numbers in lines.items()
    ]
    return sorted(found, key=lambda line: (-line.sectors, str(line.place)))
