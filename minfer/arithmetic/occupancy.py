"""How many blocks of a kernel fit on one multiprocessor, and which resource says no.

The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h`, which the driver's
`cuOccupancyMaxActiveBlocksPerMultiprocessor` follows), for compute capability 8.0 and later:

- a warp's registers are rounded up to 256 and taken from one of four sub-partitions, so warps that do not
  fill a sub-partition's registers evenly waste them;
- a block's shared memory is its static + dynamic bytes + 1 KB that the driver keeps, rounded up to 128;
- resident warps, resident blocks and (from 9.0) named barriers have limits of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from minfer.arithmetic.counts import check_counts
from minfer.arithmetic.devices import (
    REGISTER_ALLOCATION_UNIT,
    SHARED_ALLOCATION_UNIT,
    STATIC_SHARED_LIMIT,
    WARP_SIZE,
    DeviceSpec,
)

LIMITERS = {
    "shared": "shared memory",
    "registers": "registers",
    "warps": "resident warps",
    "blocks": "resident blocks",
    "barriers": "named barriers",
}
"""Resource keys in the order in which a tie is reported, with the words that people read."""


@dataclass(frozen=True)
class Occupancy:
    """Residency of one kernel on one SM.

    Attributes:
        blocks: resident blocks an SM; 0 means that the kernel cannot be launched, and `refusal` says why.
        warps: resident warps an SM. fraction: `warps` of the device's limit, 0 to 1.
        limits: blocks an SM that each resource alone would allow.
        limiters: the resources whose limit equals `blocks`, in `LIMITERS` order.
        registers_allocated, shared_allocated: what one block really takes, after rounding.
    """

    device: DeviceSpec
    threads: int
    registers: int
    shared_bytes: int
    blocks: int
    limits: MappingProxyType
    registers_allocated: int
    shared_allocated: int
    refusal: str | None = None

    @property
    def warps(self) -> int:
        return self.blocks * _ceil_div(self.threads, WARP_SIZE)

    @property
    def fraction(self) -> float:
        return self.warps / self.device.warps_per_sm

    @property
    def limiters(self) -> tuple[str, ...]:
        return tuple(key for key in LIMITERS if self.limits[key] == self.blocks)

    @property
    def limiter(self) -> str:
        """The first limiting resource: "shared", "registers", "warps", "blocks" or "barriers"."""
        return self.limiters[0]

    def __str__(self) -> str:
        if self.refusal:
            return f"cannot run on {self.device.name}: {self.refusal}"
        spent = {
            "shared": f"{self.shared_allocated:,} of {self.device.shared_per_sm:,} B a block",
            "registers": f"{self.registers_allocated:,} of {self.device.registers_per_sm:,} a block",
            "warps": f"{_ceil_div(self.threads, WARP_SIZE)} of {self.device.warps_per_sm} a block",
            "blocks": f"at most {self.device.blocks_per_sm}",
            "barriers": f"at most {self.device.barriers_per_sm}",
        }[self.limiter]
        plural = "s" if self.blocks != 1 else ""
        return (
            f"{self.blocks} block{plural} an SM, {self.warps} of {self.device.warps_per_sm} warps "
            f"({self.fraction:.2%}), limited by {LIMITERS[self.limiter]} ({spent})"
        )


def blocks_per_sm(
    device: DeviceSpec,
    threads: int,
    registers: int,
    shared_bytes: int = 0,
    *,
    static_shared_bytes: int = 0,
    barriers: int = 1,
    opt_in: bool = True,
) -> Occupancy:
    """Blocks of a kernel that one SM of `device` holds at a time.

    Args:
        threads: threads a block, at least 1.
        registers: registers a thread, as the assembler reports them, at least 1.
        shared_bytes: dynamic shared memory of the launch, bytes.
        static_shared_bytes: static shared memory of the kernel, bytes.
        barriers: named barriers that the kernel uses (`bar.sync` ids; plain `syncthreads` is one).
        opt_in: the launcher raised the kernel's dynamic limit above 48 KB (minfer's always does).

    Returns:
        An `Occupancy`; a kernel that cannot be launched has 0 blocks and a `refusal`, never an exception,
        so that sliders and tables can show it.

    Raises:
        ValueError: a count that is no whole number, or below its least legal value.
    """
    check_counts(1, threads=threads, registers=registers)
    check_counts(0, shared_bytes=shared_bytes, static_shared_bytes=static_shared_bytes, barriers=barriers)
    warps = _ceil_div(threads, WARP_SIZE)
    per_warp = _round_up(registers * WARP_SIZE, REGISTER_ALLOCATION_UNIT)
    total_shared = shared_bytes + static_shared_bytes
    shared = _round_up(total_shared + device.shared_reserved, SHARED_ALLOCATION_UNIT)
    refusal = _refusal(device, threads, registers, warps, per_warp, total_shared, static_shared_bytes, opt_in)

    warps_a_partition = device.registers_per_sm // device.sub_partitions // per_warp
    limits = {
        "shared": device.shared_per_sm // shared,
        "registers": warps_a_partition * device.sub_partitions // warps,
        "warps": device.warps_per_sm // warps,
        "blocks": device.blocks_per_sm,
        "barriers": device.blocks_per_sm,
    }
    # Only from compute capability 9.0 does the calculator charge named barriers.
    if device.cc[0] >= 9 and barriers:
        limits["barriers"] = device.barriers_per_sm // barriers
    if refusal:
        limits[refusal[0]] = 0
    return Occupancy(
        device=device,
        threads=threads,
        registers=registers,
        shared_bytes=total_shared,
        blocks=min(limits.values()),
        limits=MappingProxyType(limits),
        registers_allocated=per_warp * warps,
        shared_allocated=shared,
        refusal=refusal[1] if refusal else None,
    )


def _refusal(
    device: DeviceSpec,
    threads: int,
    registers: int,
    warps: int,
    per_warp: int,
    shared: int,
    static: int,
    opt_in: bool,
) -> tuple[str, str] | None:
    """The (resource, sentence) for a launch that the device refuses, or None."""
    cap = device.shared_per_block if opt_in else STATIC_SHARED_LIMIT
    if threads > device.threads_per_block:
        return (
            "warps",
            f"{threads:,} threads a block, the limit is {device.threads_per_block:,}: use fewer warps",
        )
    if registers > device.registers_per_thread:
        return "registers", f"{registers} registers a thread, the limit is {device.registers_per_thread}"
    # The hardware checks a block's registers as if its warps filled all four sub-partitions evenly.
    assumed = per_warp * _round_up(warps, device.sub_partitions)
    if assumed > device.registers_per_block:
        return "registers", (
            f"{assumed:,} registers a block ({registers} a thread), "
            f"the limit is {device.registers_per_block:,}: use fewer warps or a smaller tile a warp"
        )
    if static > STATIC_SHARED_LIMIT:
        return (
            "shared",
            f"{static:,} B of static shared memory, the limit is {STATIC_SHARED_LIMIT:,} B: make it dynamic",
        )
    if shared > cap:
        what = "the opt-in limit" if opt_in else "the limit without opting in"
        return "shared", (
            f"{shared:,} B of shared memory a block, {what} is {cap:,} B: use fewer stages or a smaller tile"
        )
    return None


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(value: int, unit: int) -> int:
    return _ceil_div(value, unit) * unit
