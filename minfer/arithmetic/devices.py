"""The GPUs that this project reasons about, as numbers with their sources.

Per-multiprocessor limits come from the compute capability alone; the rest is the product's. Tensor rates
are dense (no structured sparsity), with f32 accumulation for f16 and fp8 and s32 for int8: what this
project's kernels use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

WARP_SIZE = 32
REGISTER_ALLOCATION_UNIT = 256
"""Registers are given to a warp in multiples of this many."""
SHARED_ALLOCATION_UNIT = 128
"""Shared memory is given to a block in multiples of this many bytes."""
STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes a block may use without opting in; static shared memory never exceeds it."""

_GUIDE = "CUDA C++ Programming Guide, Technical Specifications per Compute Capability"
_OCCUPANCY = "CUDA toolkit, cuda_occupancy.h (allocation granularities, sub-partitions, blocks and barriers)"


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU model. Bytes are bytes, rates are per second, `sources` names where each figure was read.

    Attributes:
        name: the product's name; `key` is the short one used on command lines and in records.
        cc: compute capability (major, minor).
        sms: streaming multiprocessors.
        registers_per_sm, registers_per_block: 32-bit registers.
        shared_per_sm: bytes of shared memory of one SM at the largest carve-out.
        shared_per_block: bytes a block may use after opting in (cudaDevAttrMaxSharedMemoryPerBlockOptin).
        shared_reserved: bytes that the driver keeps for itself in every block.
        warps_per_sm, blocks_per_sm: residency limits.
        barriers_per_sm: named barriers of one SM.
        l2: L2 cache bytes. memory: nominal DRAM bytes (1 GB = 1e9 B). bandwidth: DRAM bytes a second.
        boost: the clock in Hz that `tensor_f16` belongs to.
        tensor_f16, tensor_int8, tensor_fp8: dense operations a second (a fused multiply-add is two); None:
            not built in.
    """

    key: str
    name: str
    cc: tuple[int, int]
    sms: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    shared_per_sm: int
    shared_per_block: int
    shared_reserved: int
    warps_per_sm: int
    blocks_per_sm: int
    threads_per_block: int
    barriers_per_sm: int
    sub_partitions: int
    l2: int
    memory: float
    bandwidth: float
    boost: float
    tensor_f16: float
    tensor_int8: float
    tensor_fp8: float | None
    sources: MappingProxyType

    @property
    def arch(self) -> str:
        """The architecture that this project compiles for on the device, as `ptxas -arch` takes it."""
        number = self.cc[0] * 10 + self.cc[1]
        return f"sm_{number}a" if self.cc[0] >= 9 else f"sm_{number}"

    @property
    def threads_per_sm(self) -> int:
        """Resident threads of one SM."""
        return self.warps_per_sm * WARP_SIZE

    def tensor_peak(self, dtype: str = "f16") -> float:
        """Dense tensor operations a second for `dtype` ("f16", "bf16", "int8", "fp8").

        Raises:
            ValueError: unknown dtype, or the device has no such tensor instruction.
        """
        rates = {
            "f16": self.tensor_f16,
            "bf16": self.tensor_f16,
            "int8": self.tensor_int8,
            "fp8": self.tensor_fp8,
        }
        if dtype not in rates:
            raise ValueError(f"no tensor rate for {dtype!r}; known: {', '.join(rates)}")
        if rates[dtype] is None:
            raise ValueError(f"{self.name} has no {dtype} tensor instructions (needs compute capability 8.9)")
        return rates[dtype]

    def source(self, field: str) -> str:
        """Where the figure `field` was read.

        Raises:
            KeyError: the field has no source (it is a name, or computed).
        """
        return self.sources[field]

    def __hash__(self) -> int:
        return hash(self.key)


# Limits that follow from the compute capability: shared KB per SM, resident warps, blocks, named barriers a
# block slot.
_LIMITS = {
    (8, 0): (164, 64, 32, 2),
    (8, 6): (100, 48, 16, 1),
    (8, 9): (100, 48, 24, 1),
    (9, 0): (228, 64, 32, 2),
    (10, 0): (228, 64, 32, 2),
    (12, 0): (100, 48, 24, 1),
    (12, 1): (100, 48, 24, 1),
}
_RESERVED = 1024


def _device(
    key: str, name: str, cc: tuple[int, int], product: str, *, notes: dict | None = None, **figures
) -> DeviceSpec:
    shared_kb, warps, blocks, barriers = _LIMITS[cc]
    reserved = _RESERVED
    limits = {
        "registers_per_sm": 65536,
        "registers_per_block": 65536,
        "registers_per_thread": 255,
        "shared_per_sm": shared_kb * 1024,
        "shared_per_block": shared_kb * 1024 - reserved,
        "shared_reserved": reserved,
        "warps_per_sm": warps,
        "threads_per_block": 1024,
    }
    granularity = {"blocks_per_sm": blocks, "barriers_per_sm": blocks * barriers, "sub_partitions": 4}
    sources = {
        **dict.fromkeys(limits, _GUIDE),
        **dict.fromkeys(granularity, _OCCUPANCY),
        **dict.fromkeys(figures, product),
        "cc": "NVIDIA, CUDA GPU Compute Capability",
        **(notes or {}),
    }
    return DeviceSpec(
        key=key, name=name, cc=cc, **limits, **granularity, **figures, sources=MappingProxyType(sources)
    )


_MIB = 1024 * 1024
_A100 = {
    "sms": 108,
    "l2": 40 * _MIB,
    "boost": 1.41e9,
    "tensor_f16": 312e12,
    "tensor_int8": 624e12,
    "tensor_fp8": None,
}
_HOPPER = {
    "sms": 132,
    "l2": 50 * _MIB,
    "boost": 1.83e9,
    "tensor_f16": 989.4e12,
    "tensor_int8": 1978.9e12,
    "tensor_fp8": 1978.9e12,
}
_HOPPER_NOTES = {
    "boost": "NVIDIA H100 whitepaper: the tensor rates are stated at 1830 MHz (the clock goes to 1980 MHz)",
}
_GB10_RATE = (
    "derived, NVIDIA publishes only 1 PFLOP of sparse FP4: halved for dense, then by operand width "
    "(int8 and fp8 half of FP4, f16 a quarter); an upper bound, as f32 accumulation may run slower"
)

GB10 = _device(
    "gb10",
    "NVIDIA GB10",
    (12, 1),
    "NVIDIA DGX Spark datasheet",
    sms=48,
    l2=24 * _MIB,
    memory=128e9,
    bandwidth=273e9,
    boost=2.418e9,
    tensor_f16=125e12,
    tensor_int8=250e12,
    tensor_fp8=250e12,
    notes={
        "sms": "NVIDIA DGX Spark datasheet: 6,144 CUDA cores, 128 a multiprocessor",
        "l2": "deviceQuery on a DGX Spark: 25,165,824 bytes",
        "boost": "deviceQuery on a DGX Spark: 2418 MHz",
        "tensor_f16": _GB10_RATE,
        "tensor_int8": _GB10_RATE,
        "tensor_fp8": _GB10_RATE,
    },
)
RTX_3090 = _device(
    "rtx3090",
    "NVIDIA GeForce RTX 3090",
    (8, 6),
    "NVIDIA Ampere GA102 GPU Architecture whitepaper",
    sms=82,
    l2=6 * _MIB,
    memory=24e9,
    bandwidth=936e9,
    boost=1.695e9,
    tensor_f16=71e12,
    tensor_int8=284e12,
    tensor_fp8=None,
)
RTX_4090 = _device(
    "rtx4090",
    "NVIDIA GeForce RTX 4090",
    (8, 9),
    "NVIDIA Ada GPU Architecture whitepaper",
    sms=128,
    l2=72 * _MIB,
    memory=24e9,
    bandwidth=1008e9,
    boost=2.52e9,
    tensor_f16=165.2e12,
    tensor_int8=660.6e12,
    tensor_fp8=330.3e12,
)
RTX_5090 = _device(
    "rtx5090",
    "NVIDIA GeForce RTX 5090",
    (12, 0),
    "NVIDIA RTX Blackwell GPU Architecture whitepaper",
    sms=170,
    l2=96 * _MIB,
    memory=32e9,
    bandwidth=1792e9,
    boost=2.407e9,
    tensor_f16=209.5e12,
    tensor_int8=838e12,
    tensor_fp8=419e12,
)
A100_40GB = _device(
    "a100-40gb",
    "NVIDIA A100 SXM4 40GB",
    (8, 0),
    "NVIDIA A100 Tensor Core GPU datasheet and whitepaper",
    memory=40e9,
    bandwidth=1555e9,
    **_A100,
)
A100_80GB = _device(
    "a100-80gb",
    "NVIDIA A100 SXM4 80GB",
    (8, 0),
    "NVIDIA A100 Tensor Core GPU datasheet and whitepaper",
    memory=80e9,
    bandwidth=2039e9,
    **_A100,
)
L4 = _device(
    "l4",
    "NVIDIA L4",
    (8, 9),
    "NVIDIA L4 Tensor Core GPU datasheet (sparse rates halved)",
    sms=58,
    l2=48 * _MIB,
    memory=24e9,
    bandwidth=300e9,
    boost=2.04e9,
    tensor_f16=121e12,
    tensor_int8=242.5e12,
    tensor_fp8=242.5e12,
)
H100 = _device(
    "h100",
    "NVIDIA H100 SXM5 80GB",
    (9, 0),
    "NVIDIA H100 Tensor Core GPU whitepaper and datasheet",
    memory=80e9,
    bandwidth=3350e9,
    notes=_HOPPER_NOTES,
    **_HOPPER,
)
H200 = _device(
    "h200",
    "NVIDIA H200 SXM 141GB",
    (9, 0),
    "NVIDIA H200 Tensor Core GPU datasheet (sparse rates halved)",
    memory=141e9,
    bandwidth=4800e9,
    notes={**_HOPPER_NOTES, "l2": "cudaDeviceProp.l2CacheSize on an NVIDIA H200: 62,914,560 bytes"},
    **(_HOPPER | {"l2": 60 * _MIB}),
)
B200 = _device(
    "b200",
    "NVIDIA B200 SXM",
    (10, 0),
    "NVIDIA DGX B200 and HGX B200 datasheets (per GPU; sparse rates halved)",
    sms=148,
    l2=126 * _MIB,
    memory=180e9,
    bandwidth=8000e9,
    boost=1.85e9,
    tensor_f16=2250e12,
    tensor_int8=4500e12,
    tensor_fp8=4500e12,
    notes={
        "l2": "NVIDIA Blackwell Tuning Guide: 126 MB",
        "boost": "derived from the f16 rate: 8,192 operations a clock and multiprocessor",
    },
)

DEVICES: dict[str, DeviceSpec] = {
    d.key: d for d in (GB10, RTX_3090, RTX_4090, RTX_5090, A100_40GB, A100_80GB, L4, H100, H200, B200)
}
"""Every device of the table by its key."""


def device(key: str) -> DeviceSpec:
    """The device with this key (see `DEVICES`), upper or lower case.

    Raises:
        KeyError: unknown key; the message lists those known.
    """
    found = DEVICES.get(key.lower())
    if found is None:
        raise KeyError(f"no device {key!r}; known: {', '.join(DEVICES)}")
    return found


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that a block may use on an architecture ("sm_90a"), opted in; of one that is not
    known, what the first of its family allows.

    Raises:
        KeyError: nothing is known of its family; the message lists the architectures that are known.
    """
    number = arch.removeprefix("sm_").rstrip("af")
    major, minor = divmod(int(number), 10) if number.isdecimal() else (0, 0)
    limits = _LIMITS.get((major, minor)) or _LIMITS.get((major, 0))
    if limits is None:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in _LIMITS)
        raise KeyError(f"no limits of architecture {arch!r}; known: {known}")
    shared_kb, *_ = limits
    return shared_kb * 1024 - _RESERVED


_PLACES = {"NVIDIA", "GEFORCE", "SXM", "SXM2", "SXM4", "SXM5"}


def by_name(name: str) -> DeviceSpec | None:
    """The table's device for a name as the driver reports it ("NVIDIA A100-SXM4-80GB"), or None: another
    model's, such as a Ti, a laptop's or a PCIe card's, which has the same words and others.

    The memory size, where both say it, must agree.
    """
    model, size = _model(name)
    for candidate in DEVICES.values():
        own_model, own_size = _model(candidate.name)
        if model == own_model and (size is None or own_size is None or size == own_size):
            return candidate
    return None


def _model(name: str) -> tuple[frozenset[str], str | None]:
    """(the words that tell a model from others, its memory size or None) of a device's name."""
    words = set(name.upper().replace("-", " ").split())
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    memory = {word for word in words if word.startswith("HBM")}
    return frozenset(words - sizes - memory - _PLACES), min(sizes, default=None)
