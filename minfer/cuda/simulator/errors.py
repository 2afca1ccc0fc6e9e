"""What goes wrong in a simulated kernel, told with kernel, block, thread and source line."""

from __future__ import annotations


class SimulatorError(RuntimeError):
    """A fault of a simulated kernel. The executor fills in where it happened.

    Attributes:
        reason: what went wrong, without the place.
        kernel: the kernel's name.
        block: block index (x, y, z).
        thread: thread index in the block.
        where: "file:line in function" of the kernel source.
        address: the memory address concerned, or None.
    """

    def __init__(self, reason: str, *, address: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.address = address
        self.kernel: str | None = None
        self.block: tuple[int, int, int] | None = None
        self.thread: int | None = None
        self.where: str | None = None

    def __str__(self) -> str:
        if self.kernel is None:
            return self.reason
        place = f"{self.kernel}, block {self.block}"
        if self.thread is not None:
            place += f", thread {self.thread}"
        if self.where:
            place += f", {self.where}"
        return f"{self.reason}\n  in {place}"


class OutOfBounds(SimulatorError):
    """An address outside every array, outside the block's shared memory, or past a local array's end."""


class Misaligned(SimulatorError):
    """An address that is not a multiple of what the instruction requires."""


class Divergence(SimulatorError):
    """A warp collective that not all lanes of the warp reach, or reach at different places."""


class Deadlock(Divergence):
    """Every thread that is left waits for something that can no longer happen."""


class UninitializedShared(SimulatorError):
    """A read of shared memory that nothing has written (strict checking)."""


class UninitializedLocal(SimulatorError):
    """A read of a local array's element that nothing has written."""


class AsyncHazard(SimulatorError):
    """Memory or registers changed while an asynchronous instruction still used them."""


class InvalidInstruction(SimulatorError):
    """Operands that the instruction does not allow (tensor map, descriptor, transfer size, barrier state)."""
