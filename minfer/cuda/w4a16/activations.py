"""The thread that brings a tile's activations: k-tiles into a ring of stages, by TMA."""

from __future__ import annotations

from typing import Any

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.tile.scheduler import tile_xy


def bring_activations(config: Any, following: DeviceFunction) -> DeviceFunction:
    """(tensor map address, first stage, mbarriers, tile, step, last, token_tiles, output_tiles, k_tiles,
    group, stage, parity) -> (tile, stage, parity): all k-tiles of all tiles of this thread block, from a
    cursor of the ring on (at first 0, 1); then the first tile past the last one, and the cursor for what
    follows. `config` has tokens, tile_k, stages, stage_bytes and the ring; tiles come as `following`
    (`minfer.cuda.tile.scheduler`) says."""
    tokens, tile_k, stages, stage_bytes = config.tokens, config.tile_k, config.stages, config.stage_bytes
    # Boxes of rows of 128 bytes, one behind the other.
    columns, boxes = config.boxes["a"][1], tile_k // config.boxes["a"][1]
    advance = config.ring.advance

    @device_function
    def bring(
        a_map, base, barriers, tile, step, last, token_tiles, output_tiles, k_tiles, group, stage, parity
    ):
        while tile < token_tiles * output_tiles:
            token_tile, _ = tile_xy(tile, token_tiles, output_tiles, group)
            token = types.int32(token_tile * tokens)
            k = types.int32(0)
            while k < k_tiles:
                full = barriers + 8 * stage
                ptx.mbarrier_wait(full + 8 * stages, parity)
                ptx.mbarrier_arrive_expect_tx(full, stage_bytes)
                place = base + stage * stage_bytes
                for box in range(boxes):
                    ptx.tma_load_2d(
                        place + box * tokens * 128, a_map, full, k * tile_k + box * columns, token
                    )
                stage, parity = advance(stage, parity)
                k = types.int32(k + 1)
            tile = types.int32(following(tile, step, last))
        return tile, stage, parity

    return bring
