"""Vector clocks: what each thread of a cluster knows to have been done.

Every thread counts its own steps, and knows of every other one up to which step what that did comes before
its own present. Whoever arrives at a barrier leaves there what it knows; whoever has waited takes it along.
"""

from __future__ import annotations

from array import array

import numpy as np


class Clocks:
    """Those of `size` threads (agents beside them, such as a copy engine, are threads too).

    Attributes:
        of: each thread's clock: of[a][b] is the last step of b that comes before a's present; of[a][a] is the
            step that a is at.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.of = [array("i", bytes(4 * size)) for _ in range(size)]
        self._views = [np.frombuffer(clock, np.intc) for clock in self.of]
        self._meetings: dict[tuple, np.ndarray] = {}
        for thread in range(size):
            self.of[thread][thread] = 1

    def now(self, thread: int) -> int:
        """The step that a thread is at."""
        return self.of[thread][thread]

    def tick(self, thread: int) -> None:
        """The thread's next step."""
        self.of[thread][thread] += 1

    def release(self, thread: int, key: tuple) -> None:
        """What this thread has done until now comes before whatever acquires `key`."""
        meeting = self._meeting(key)
        np.maximum(meeting, self._views[thread], out=meeting)
        self.tick(thread)

    def acquire(self, thread: int, key: tuple) -> None:
        """Take along what was left at `key`."""
        meeting = self._meetings.get(key)
        if meeting is not None:
            np.maximum(meeting, self._views[thread], out=self._views[thread])

    def announce(self, thread: int, key: tuple) -> None:
        """Leave at `key` the thread's own step, and nothing that it knows of others."""
        self._meeting(key)[thread] = self.now(thread)

    def _meeting(self, key: tuple) -> np.ndarray:
        known = self._meetings.get(key)
        if known is None:
            known = self._meetings[key] = np.zeros(self.size, np.intc)
        return known
