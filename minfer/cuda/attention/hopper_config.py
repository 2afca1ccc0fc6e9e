"""Configs of Hopper's prefill attention, and which block computes which tile.

A tile is 128 query rows of one head. Its KV tiles of 128 rows go from the diagonal down. They are aligned to
the queries, not to the cache: the first one starts at the tile's first position, or where it ends with the
last stored row. So it holds every row's own key, it alone needs the causal mask, and rows past the stored
ones are never read. The last one may begin before row 0.
"""

from __future__ import annotations

import functools
import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minfer.cuda.attention.config import SHARED_LIMIT
from minfer.cuda.checks import check_choice, check_types
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.hopper import ALIGNMENT, BOX_COLUMNS, BUFFER_BYTES, MbarrierRing

if TYPE_CHECKING:
    import numpy as np

TILE = 128  # query rows of a tile, cache rows of a KV tile
CONSUMERS = 2
WARPS = 4 * CONSUMERS
STAGES = 2  # KV tiles in flight, of K and of V each
SOFTMAX = ("running", "lazy", "diagonal")
SCHEDULES = ("strided", "lpt")
LAZY_BITS = 8.0  # binary digits by which a row's maximum may outgrow its reference ("lazy")
# What a tile costs beside its KV tiles, in KV tiles (H200).
TILE_OVERHEAD = 1.2


@dataclass(frozen=True)
class HopperAttentionConfig:
    """Causal GQA prefill over an f16 KV cache on Hopper: wgmma, TMA, persistent warp-specialised blocks.

    Attributes:
        heads, kv_heads: query heads and kv heads; heads % kv_heads == 0.
        head_dim: 64 or 128.
        overlap: Q K^T of the next KV tile is issued with P V of this one, which runs under the exponentials;
            else one product at a time.
        late_values: V is awaited after the exponentials, when P V needs it; else as soon as the scores are
            there.
        softmax: what a row's exponentials are relative to. Softmax does not care, as long as nothing
            overflows:
            "running": the maximum so far. Each KV tile needs the row's maximum (shuffles) before its
            exponentials, and a rescale of the sums.
            "lazy": the same, but the reference moves, and the sums are rescaled, only where a maximum has
            outgrown it by 2^8: P stays far below f16's 65504, its relative precision is the same.
            "diagonal": the maximum over the row's first KV tile, which holds the row's own key. No maximum
            afterwards: the row sums, needed anyway, tell where P grew too large (`rescue_above`), and only
            then a warp moves its reference.
        stagger: the second consumer starts a tile when the first one has its scores, so that one's products
            run under the other's exponentials.
        query: where the products read Q from: "shared" memory, or "registers", loaded once a tile.
        chained: a tile's first product is issued behind the last one of the tile before, whose output leaves
            under it.
        schedule: "strided" (block b takes tiles b, b + blocks, ..., longest first) or "lpt" (longest
            processing time first: each tile goes to the block that has the least to do).
        rescue_above: a lane's sum of P in a KV tile beyond which its warp moves the reference; at most 32768,
            so that no P passes f16's largest number.
    """

    heads: int
    kv_heads: int
    head_dim: int = 128
    overlap: bool = True
    late_values: bool = True
    softmax: str = "diagonal"
    stagger: bool = True
    query: str = "registers"
    chained: bool = False
    schedule: str = "lpt"
    rescue_above: float = 32768.0

    threads = 128 * (CONSUMERS + 1)

    def __post_init__(self) -> None:
        check_types("attention_hopper", self)
        check_choice("attention_hopper", "head_dim", self.head_dim, (64, 128))
        check_choice("attention_hopper", "softmax", self.softmax, SOFTMAX)
        check_choice("attention_hopper", "query", self.query, ("shared", "registers"))
        check_choice("attention_hopper", "schedule", self.schedule, SCHEDULES)
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            raise ConfigRefused(
                f"attention_hopper: {self.heads} heads on {self.kv_heads} kv heads; take a multiple"
            )
        if not 0 < self.rescue_above <= 32768:
            raise ConfigRefused(
                f"attention_hopper: rescue_above={self.rescue_above}; above 0, at most 32768 (f16 ends at "
                "65504)"
            )
        assert self.shared_bytes <= SHARED_LIMIT

    def __str__(self) -> str:
        text = f"heads={self.heads}/{self.kv_heads} hd={self.head_dim} {self.softmax}"
        text += "" if self.overlap else " serial"
        text += " late-v" if self.late_values else ""
        text += " staggered" if self.stagger else ""
        text += " chained" if self.chained else ""
        text += " q-registers" if self.query == "registers" else ""
        text += "" if self.rescue_above == 32768 else f" rescue>{self.rescue_above:g}"
        return f"{text} {self.schedule}"

    @functools.cached_property
    def query_ring(self) -> MbarrierRing:
        return MbarrierRing(1, CONSUMERS if self.query == "shared" else WARPS)

    @functools.cached_property
    def kv_ring(self) -> MbarrierRing:
        """Of K, and another one of V."""
        return MbarrierRing(STAGES, CONSUMERS)

    @property
    def tile_bytes(self) -> int:
        """Shared memory of a tile of Q, K or V: boxes of 64 columns one behind the other."""
        return TILE * self.head_dim * 2

    @property
    def store_bytes(self) -> int:
        """Shared memory of a warp's 16 rows of output."""
        return self.head_dim // BOX_COLUMNS * BUFFER_BYTES

    @property
    def starts(self) -> dict[str, int]:
        """Where the parts of shared memory begin."""
        output = (1 + 2 * STAGES) * self.tile_bytes
        return {
            "q": 0,
            "k": self.tile_bytes,
            "v": (1 + STAGES) * self.tile_bytes,
            "out": output,
            "barriers": output + WARPS * self.store_bytes,
        }

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block, with room to align its start to 1024 bytes."""
        barriers = self.query_ring.size_bytes + 2 * self.kv_ring.size_bytes
        return self.starts["barriers"] + barriers + ALIGNMENT

    @functools.cached_property
    def boxes(self) -> dict[str, tuple[int, int]]:
        """Argument -> (rows, columns) of its tensor map's boxes; all have the 128-byte swizzle."""
        return {**dict.fromkeys("qkv", (TILE, BOX_COLUMNS)), "out": (16, BOX_COLUMNS)}

    def kv_tiles(self, block: int, q_offset: int, kv_end: int) -> int:
        """KV tiles that the queries from row 128 `block` on take."""
        return -(-(min(q_offset + TILE * block, kv_end - TILE) + TILE) // TILE)

    def grid(self, nt: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile."""
        return min(multiprocessors, self.tiles(nt)), 1, 1

    def tiles(self, nt: int) -> int:
        """Tiles of a launch: 128 queries of a head."""
        return self.heads * -(-nt // TILE)

    def successors(self, nt: int, q_offset: int, kv_end: int, multiprocessors: int) -> np.ndarray:
        """Which tile a block takes after each tile, -1: none. int32 (tiles,), for a launch on `grid`.

        Tiles count from the longest: query blocks from the last one, head by head. Block b begins with tile
        b. Read-only and kept: launches of the same lengths share it.

        Raises ConfigRefused for lengths below 1 or a negative offset."""
        if min(nt, kv_end) < 1 or q_offset < 0:
            raise ConfigRefused(
                f"attention_hopper: {nt} queries from position {q_offset} over {kv_end} cache rows; lengths "
                "start at 1, positions at 0"
            )
        costs = self._costs(nt, q_offset, kv_end)
        return _successors(costs, self.heads, self.schedule, self.grid(nt, multiprocessors)[0])

    def balance(self, nt: int, multiprocessors: int) -> float:
        """Share of the blocks' time in which they have a tile, for a prompt of nt tokens, 0 to 1."""
        costs, after = self._costs(nt, 0, nt), self.successors(nt, 0, nt, multiprocessors)
        loads = []
        for tile in range(self.grid(nt, multiprocessors)[0]):
            loads.append(0.0)
            while tile >= 0:
                loads[-1] += costs[tile // self.heads] + TILE_OVERHEAD
                tile = after[tile]
        return sum(loads) / len(loads) / max(loads)

    def _costs(self, nt: int, q_offset: int, kv_end: int) -> tuple[int, ...]:
        """KV tiles of a tile of each block of queries, from the last block."""
        return tuple(self.kv_tiles(block, q_offset, kv_end) for block in reversed(range(-(-nt // TILE))))


@functools.lru_cache(maxsize=64)
def _successors(costs: tuple[int, ...], heads: int, schedule: str, blocks: int) -> np.ndarray:
    import numpy as np

    table = np.full(len(costs) * heads, -1, np.int32)
    # (load, block, its last tile), the least loaded first; strided: every tile counts the same.
    queue = [(0.0, block, -1) for block in range(blocks)]
    for tile in range(len(table)):
        load, block, last = queue[0]
        if last >= 0:
            table[last] = tile
        cost = costs[tile // heads] + TILE_OVERHEAD if schedule == "lpt" else 1.0
        heapq.heapreplace(queue, (load + cost, block, tile))
    table.flags.writeable = False
    return table


def hopper_steps(heads: int, kv_heads: int, head_dim: int = 128) -> dict[str, HopperAttentionConfig]:
    """The ladder by name: each step one change to the one before, a config that runs alone."""
    changes = {
        "no overlap": {},
        "overlap": {"overlap": True},
        "LPT order": {"schedule": "lpt"},
        "late V": {"late_values": True},
        "lazy rescale": {"softmax": "lazy"},
        "no running maximum": {"softmax": "diagonal"},
        "staggered start": {"stagger": True},
        "Q in registers": {"query": "registers"},
    }
    config = HopperAttentionConfig(
        heads, kv_heads, head_dim, False, False, "running", False, "shared", False, "strided"
    )
    steps = {}
    for name, change in changes.items():
        steps[name] = config = replace(config, **change)
    return steps
