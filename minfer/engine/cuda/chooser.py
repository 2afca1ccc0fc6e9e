"""Greedy decoding on the device: it decodes next what it finds most likely, without asking the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda.elementwise import ArgmaxConfig, argmax
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import launch_for


class Chooser:
    """Chooses the next token of one context, whose token id, position and length are `state`, int32 [1] each.

    pdl: the kernels overlap with the one before (`minfer.cuda.dependent`).
    """

    def __init__(self, device: Device, vocab: int, state: tuple[Any, Any, Any], pdl: bool) -> None:
        self._device, self._vocab, self._state = device, vocab, state
        self._partial, self._next = (
            launch_for(argmax, ArgmaxConfig, (vocab,), stage, pdl=pdl) for stage in ("partial", "next")
        )
        self._candidates = device.empty((self._partial.grid[0], 2), np.uint32)
        # Of the last two positions: one is read while the other is written.
        self.chosen, self._seen = device.mapped(2, np.int32)

    def enqueue(self, logits: Any) -> None:
        """Choose from f32 logits (vocab,): the state becomes that of the next token."""
        device, candidates = self._device, self._candidates
        self._partial.on(device, logits, candidates, self._vocab)
        self._next.on(device, candidates, self.chosen, *self._state, len(candidates))

    def after(self, position: int) -> Callable[[], int]:
        """What waits until everything enqueued has been done and returns the choice after the token at
        `position`, the last one enqueued; -1 if a logit was no number."""
        wait = self._device.mark()

        def chosen() -> int:
            wait()
            return int(self._seen[position & 1])

        return chosen
