"""What a tile of packed weights shares whatever its arithmetic: rings, shared memory, the schedule."""

from __future__ import annotations

from functools import cached_property

from minfer.cuda.kernel import MAX_SHARED_BYTES
from minfer.cuda.tile.hopper import ALIGNMENT, MbarrierRing, chunk_starts
from minfer.cuda.tile.transposed import chunk_bytes

#: Weight rows of a consumer warpgroup, and of the two that most tiles have.
CONSUMER_ROWS = 64
CONSUMERS = 2
ROWS = CONSUMERS * CONSUMER_ROWS
#: Warps of the first warpgroup that bring the weights; the warp before them brings the activations.
MOVERS = 3
#: Consumers -> registers a thread after setmaxnreg, producers' and consumers': 56 + 2 x 224 = 3 x 168 and
#: 32 + 3 x 160 = 4 x 128, what 384 and 512 threads start with.
REGISTERS = {2: (56, 224), 3: (32, 160)}
#: Tokens that a group of token tiles should hold: their activations stay in L2 while the weights pass.
GROUP_TOKENS = 2048


class PackedTile:
    """Base of the configs: 64 weight rows a consumer x `tokens`, `stages` of activations, `slots` of weights.

    In shared memory lie the stages, the epilogue's buffers, the slots and the mbarriers. A config says how
    large a stage (`stage_bytes`) and a slot (`slot_bytes`) are.
    """

    tokens: int
    stages: int
    slots: int
    gated: bool
    stage_bytes: int
    slot_bytes: int
    consumers: int = CONSUMERS
    #: Arrivals that, with the bytes of TMA, say that a slot's weights have landed.
    landing_arrivals: int = 1

    @property
    def threads(self) -> int:
        """Those of the consumers and of a warpgroup that brings the operands."""
        return 128 * (self.consumers + 1)

    @property
    def rows(self) -> int:
        """Weight rows of a tile."""
        return self.consumers * CONSUMER_ROWS

    @property
    def outputs(self) -> int:
        """Columns of C in a tile."""
        return self.rows // 2 if self.gated else self.rows

    @property
    def chunk_bytes(self) -> int:
        """A chunk of a consumer's part of C."""
        return chunk_bytes(self.outputs // self.consumers)

    @cached_property
    def ring(self) -> MbarrierRing:
        """Of the activations' stages: a warpgroup arrives once."""
        return MbarrierRing(self.stages, self.consumers)

    @cached_property
    def slot_ring(self) -> MbarrierRing:
        """Of the weights' slots: every consumer warp arrives, since each reads them by itself."""
        return MbarrierRing(self.slots, 4 * self.consumers, self.landing_arrivals)

    @property
    def ready_start(self) -> int:
        """Where, behind both rings' mbarriers, those lie that say that a slot's scales are there."""
        return self.ring.size_bytes + self.slot_ring.size_bytes

    @property
    def constant_start(self) -> int:
        """Where, behind all mbarriers, the constant of gated products lies."""
        return self.ready_start + 8 * self.slots

    @property
    def barrier_bytes(self) -> int:
        """The mbarriers and the constant."""
        return self.constant_start + 8

    @property
    def buffers(self) -> int:
        """Chunks of C that a consumer may have in flight: what fits."""
        used = self.stages * self.stage_bytes + self.slots * self.slot_bytes + self.barrier_bytes + ALIGNMENT
        return min(
            len(chunk_starts(self.tokens)), (MAX_SHARED_BYTES - used) // (self.consumers * self.chunk_bytes)
        )

    @property
    def buffers_start(self) -> int:
        """Where the epilogue's buffers lie: behind the activations."""
        return self.stages * self.stage_bytes

    @property
    def slots_start(self) -> int:
        """Where the weights lie: behind the epilogue's buffers."""
        return self.buffers_start + max(0, self.buffers) * self.consumers * self.chunk_bytes

    @property
    def barriers_start(self) -> int:
        return self.slots_start + self.slots * self.slot_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block, with room to align its start to 1024 bytes."""
        return self.barriers_start + self.barrier_bytes + ALIGNMENT

    def tiles(self, nt: int, od: int) -> tuple[int, int]:
        """(token tiles, output tiles)."""
        return -(-nt // self.tokens), -(-od // self.outputs)

    def grid(self, nt: int, od: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile."""
        token_tiles, output_tiles = self.tiles(nt, od)
        return min(multiprocessors, token_tiles * output_tiles), 1, 1

    def has_narrow(self, nt: int) -> bool:
        """Whether the last column of tiles is multiplied as narrower ones."""
        return False

    def group(self, nt: int) -> int:
        """Token tiles a group of the schedule: about 2048 tokens. Narrow ones are a group of their own, the
        last, where one group holds all the others."""
        token_tiles = -(-nt // self.tokens) - self.has_narrow(nt)
        return max(1, -(-token_tiles // max(1, round(nt / GROUP_TOKENS))))
