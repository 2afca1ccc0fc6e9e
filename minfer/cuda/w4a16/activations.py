"""The thread that brings a tile's activations: k-tiles into a ring of stages, by TMA."""

from __future__ import annotations

from typing import Any

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.tile.scheduler import tile_xy


def bring_activations(config: Any, following: DeviceFunction, tokens: int) -> DeviceFunction:
    """(tensor map address, first stage, mbarriers, tile, step, last, token_tiles, output_tiles, k_first,
    k_tiles, group, stage, parity) -> (tile, stage, parity): the k-tiles from k_first on, k_tiles of them, of
    all tiles of this thread block, from a cursor of the ring on (at first 0, 1); then the first tile past the
    last one, and the cursor for what follows. `config` has tile_k, stages, stage_bytes and the ring; tiles
    are of `tokens`, as the map's boxes, and come as `following` (`minfer.cuda.tile.scheduler`) says."""
    tile_k, stages, stage_bytes = config.tile_k, config.stages, config.stage_bytes
    # Boxes of rows of 128 bytes, one behind the other.
    columns, boxes = config.boxes["a"][1], tile_k // config.boxes["a"][1]
    box_bytes = tokens * 128
    advance = config.ring.advance

    @device_function
    def bring(
        a_map, base, barriers, tile, step, last, token_tiles, output_tiles, k_first, k_tiles, group, stage,
        parity,
    ):  # fmt: skip
        while tile < token_tiles * output_tiles:
            token_tile, _ = tile_xy(tile, token_tiles, output_tiles, group)
            token = types.int32(token_tile * tokens)
            k = types.int32(0)
            while k < k_tiles:
                full = barriers + 8 * stage
                ptx.mbarrier_wait(full + 8 * stages, parity)
                ptx.mbarrier_arrive_expect_tx(full, boxes * box_bytes)
                place = base + stage * stage_bytes
                for box in range(boxes):
                    column = (k_first + k) * tile_k + box * columns
                    ptx.tma_load_2d(place + box * box_bytes, a_map, full, column, token)
                stage, parity = advance(stage, parity)
                k = types.int32(k + 1)
            tile = types.int32(following(tile, step, last))
        return tile, stage, parity

    return bring
