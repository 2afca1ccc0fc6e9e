"""Where and when a thread runs."""

from minfer.cuda.instruction import instruction, u32, u64


@instruction("mov.u32 $0, %smid;", section="10.8 Special Registers: %smid")
def multiprocessor() -> u32:
    """Number of the multiprocessor that runs this thread."""


@instruction("mov.u64 $0, %clock64;", section="10.24 Special Registers: %clock64")
def clock64() -> u64:
    """Clock cycles of this multiprocessor; each has a counter of its own."""


@instruction("mov.u64 $0, %globaltimer;", section="10.28 Special Registers: %globaltimer")
def globaltimer() -> u64:
    """Nanoseconds, the same for all multiprocessors; how often it advances depends on the device."""
