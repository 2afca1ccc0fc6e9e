"""Small kernels around one PTX instruction each, with random inputs.

The same source runs on the GPU and in the simulator, and both must give the same words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import Instruction, f32, s32
from minfer.cuda.kernel import Argument, Kernel

THREADS = 128


@dataclass(frozen=True)
class Probe:
    """One kernel with its inputs.

    Attributes:
        kernel: its last array argument is the output, of `out_words` u32.
        inputs: the arrays before it.
        rtol, atol: 0 for bit equality; else the output is compared as f32.
    """

    kernel: Kernel
    inputs: tuple[np.ndarray, ...]
    out_words: int
    rtol: float = 0.0
    atol: float = 0.0

    def __str__(self) -> str:
        return self.kernel.name


@dataclass(frozen=True)
class ProbeConfig:
    """Which instruction."""

    instruction: str

    def __str__(self) -> str:
        return self.instruction


def _kernel(name: str, function: Callable, inputs: tuple, shared_bytes: int = 0, **limits: Any) -> Kernel:
    arguments = (
        *(Argument(f"in{i}", "in", array.dtype.name) for i, array in enumerate(inputs)),
        Argument("out", "out", "uint32"),
    )
    return Kernel(
        name="probe",
        config=ProbeConfig(name),
        function=function,
        threads=THREADS,
        shared_bytes=shared_bytes,
        arguments=arguments,
        **limits,
    )


def _compiled(source: str, **names: Any) -> Callable:
    """The function `kernel` of a source text: one text serves instructions of any number of operands."""
    scope = {"cuda": cuda, "ptx": ptx, "types": types, **names}
    exec(source, scope)
    return scope["kernel"]


def _result_words(instruction: Instruction) -> list[str]:
    """Expressions for the results of the call `r`, as u32 words."""
    several = len(instruction.returns) > 1
    words = []
    for i, scalar in enumerate(instruction.returns):
        value = f"r[{i}]" if several else "r"
        words.append(f"ptx.bitcast_u32_f32({value})" if scalar is f32 else f"types.uint32({value})")
    return words


# ---- instructions on registers


def register_probe(
    name: str, instruction: Instruction, words: list[np.ndarray], rtol: float = 0.0, atol: float = 0.0
) -> Probe:
    """Every lane calls `instruction` on its own words (u32 arrays of THREADS, one an operand)."""
    operands = []
    for i, (_, scalar) in enumerate(instruction.operands):
        word = f"in0[types.int32({i * THREADS}) + tid]"
        signed = f"types.int32({word})" if scalar is s32 else word
        operands.append(f"ptx.bitcast_f32_u32({word})" if scalar is f32 else signed)
    results = _result_words(instruction)
    stores = [f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)]
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            f"    r = op({', '.join(operands)})",
            *stores,
        ]
    )
    inputs = (np.concatenate([*words, np.zeros(1, np.uint32)]),)  # never empty
    kernel = _kernel(name, _compiled(source, op=instruction), inputs)
    return Probe(kernel, inputs, len(stores) * THREADS, rtol, atol)


_SPECIAL = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3e38, 1e-20])


def _floats(rng, scale: float = 4.0, special: bool = True) -> np.ndarray:
    values = (rng.normal(size=THREADS) * scale).astype(np.float32)
    if special:
        values[: _SPECIAL.size] = rng.permutation(_SPECIAL)
    return values.view(np.uint32)


def _halves(rng, scale: float = 2.0) -> np.ndarray:
    return (rng.normal(size=(THREADS, 2)) * scale).astype(np.float16).view(np.uint32).reshape(-1)


def _brain(rng) -> np.ndarray:
    """Two bf16 in a word: f32 with the low half cut off."""
    high = rng.normal(size=(2, THREADS)).astype(np.float32).view(np.uint32) >> np.uint32(16)
    return high[0] | high[1] << np.uint32(16)


def _words(rng, high: int = 2**32) -> np.ndarray:
    return rng.integers(0, high, THREADS, dtype=np.uint64).astype(np.uint32)


def _positive(rng) -> np.ndarray:
    return np.exp(rng.uniform(-20, 20, THREADS)).astype(np.float32).view(np.uint32)


def _bits_of_warps(rng) -> np.ndarray:
    """0/1 conditions: all set, none set, mixed, one set."""
    warps = np.zeros((4, 32), np.uint32)
    warps[0], warps[2], warps[3, 7] = 1, rng.integers(0, 2, 32), 1
    return warps.reshape(-1)


# name -> (words of the operands, relative and absolute tolerance). The approximations' errors are those that
# the PTX ISA gives; a tensor core adds in an order and precision of its own.
_REGISTER_CASES: dict[str, tuple[Callable, float, float]] = {
    "dp4a": (lambda g: [_words(g), _words(g), _words(g)], 0, 0),
    "udiv_u32": (lambda g: [_words(g), _words(g, 1000) + np.uint32(1)], 0, 0),
    "pack_f16x2": (lambda g: [_floats(g, 3e4), _floats(g, 1e-4)], 0, 0),
    "pack_bf16x2": (lambda g: [_floats(g), _floats(g)], 0, 0),
    "unpack_f16x2_lo": (lambda g: [_halves(g)], 0, 0),
    "unpack_f16x2_hi": (lambda g: [_halves(g)], 0, 0),
    "prmt": (lambda g: [_words(g), _words(g), _words(g, 1 << 16)], 0, 0),
    "shf_r_wrap": (lambda g: [_words(g), _words(g), _words(g)], 0, 0),
    "hfma2": (lambda g: [_halves(g), _halves(g), _halves(g)], 0, 0),
    "hadd2": (lambda g: [_halves(g), _halves(g)], 0, 0),
    "hmul2": (lambda g: [_halves(g), _halves(g)], 0, 0),
    "hfma2_pair": (lambda g: [_halves(g), _halves(g)], 0, 0),
    "hmul2_low": (lambda g: [_halves(g), _halves(g)], 0, 0),
    "hmul2_high": (lambda g: [_halves(g), _halves(g)], 0, 0),
    "hsub2": (lambda g: [_halves(g), _halves(g)], 0, 0),
    "ex2_approx": (lambda g: [_floats(g, 20.0)], 2**-21, 2**-126),
    "lg2_approx": (lambda g: [_positive(g)], 2**-21, 2**-20),
    "rcp_approx": (lambda g: [_floats(g)], 2**-22, 2**-126),
    "rsqrt_approx": (lambda g: [_positive(g)], 2**-21, 2**-126),
    "fma_rn_f32": (lambda g: [_floats(g), _floats(g), _floats(g)], 0, 0),
    "div_rn_f32": (lambda g: [_floats(g), _floats(g)], 0, 0),
    "max_f32": (lambda g: [_floats(g), _floats(g)], 0, 0),
    "min_f32": (lambda g: [_floats(g), _floats(g)], 0, 0),
    "cvt_rn_f32_s32": (lambda g: [_words(g)], 0, 0),
    "cvt_rn_f32_u32": (lambda g: [_words(g)], 0, 0),
    "cvt_rni_s32_f32": (lambda g: [_floats(g, 1e9)], 0, 0),
    "cvt_rna_tf32_f32": (lambda g: [_floats(g, special=False)], 0, 0),
    "bitcast_f32_u32": (lambda g: [_floats(g)], 0, 0),
    "bitcast_u32_f32": (lambda g: [_floats(g)], 0, 0),
    "select_u32": (lambda g: [_bits_of_warps(g), _words(g), _words(g)], 0, 0),
    "lane_id": (lambda g: [], 0, 0),
    "uniform": (lambda g: [_words(g)], 0, 0),
    "shfl_xor_f32": (lambda g: [_floats(g), np.full(THREADS, 5, np.uint32)], 0, 0),
    "shfl_xor_u32": (lambda g: [_words(g), np.full(THREADS, 17, np.uint32)], 0, 0),
    "shfl_idx_f32": (lambda g: [_floats(g), _words(g, 32)], 0, 0),
    "shfl_idx_u32": (lambda g: [_words(g), _words(g, 32)], 0, 0),
    "shfl_down_f32": (lambda g: [_floats(g), np.full(THREADS, 3, np.uint32)], 0, 0),
    "shfl_down_u32": (lambda g: [_words(g), np.full(THREADS, 9, np.uint32)], 0, 0),
    "vote_any": (lambda g: [_bits_of_warps(g)], 0, 0),
    "vote_all": (lambda g: [_bits_of_warps(g)], 0, 0),
    "mma_m16n8k16_f16": (
        lambda g: [*(_halves(g) for _ in range(6)), *(_floats(g, special=False) for _ in range(4))],
        1e-5,
        1e-4,
    ),
    "mma_m16n8k16_bf16": (
        lambda g: [*(_brain(g) for _ in range(6)), *(_floats(g, special=False) for _ in range(4))],
        1e-5,
        1e-4,
    ),
    "mma_m16n8k32_s8": (lambda g: [_words(g) for _ in range(10)], 0, 0),
    "mma_m16n8k32_u8s8": (lambda g: [_words(g) for _ in range(10)], 0, 0),
    "mma_m16n8k32_s8u8": (lambda g: [_words(g) for _ in range(10)], 0, 0),
    "mma_m16n8k16_s8": (lambda g: [_words(g) for _ in range(7)], 0, 0),
}


# ---- loads and stores


def global_load_probe(name: str) -> Probe:
    """out = the words of every lane's own piece of a byte buffer."""
    instruction, size = getattr(ptx, name), access_bytes(name)
    results = _result_words(instruction)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            f"    r = op(ptx.global_address(in0) + types.uint64(tid) * types.uint64({size}))",
            *(f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)),
        ]
    )
    inputs = (_bytes(name, THREADS * size),)
    return Probe(_kernel(name, _compiled(source, op=instruction), inputs), inputs, THREADS * len(results))


def global_store_probe(name: str) -> Probe:
    """out (as bytes) = pieces stored by every lane."""
    instruction, size = getattr(ptx, name), access_bytes(name)
    values = _value_words(instruction)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            f"    address = ptx.global_address(out) + types.uint64(tid) * types.uint64({size})",
            f"    op(address, {', '.join(values)})",
        ]
    )
    inputs = (_bytes(name, THREADS * 16).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source, op=instruction), inputs), inputs, THREADS * size // 4)


_FILL = [
    "    tid = types.int32(cuda.threadIdx.x)",
    "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
    "    for i in range({words} // 128):",
    "        at = types.int32(i * 128) + tid",
    "        ptx.st_shared_u32(base + types.uint32(at * 4), in0[at])",
    "    cuda.syncthreads()",
]
_DRAIN = [
    "    cuda.syncthreads()",
    "    for i in range({words} // 128):",
    "        at = types.int32(i * 128) + tid",
    "        out[at] = ptx.ld_shared_u32(base + types.uint32(at * 4))",
]


def _shared_lines(lines: list[str], words: int) -> list[str]:
    return [line.format(words=words) for line in lines]


def shared_load_probe(name: str) -> Probe:
    """As `global_load_probe`, from shared memory."""
    instruction, size = getattr(ptx, name), access_bytes(name)
    results, words = _result_words(instruction), max(THREADS * size // 4, 128)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *_shared_lines(_FILL, words),
            f"    r = op(base + types.uint32(tid * {size}))",
            *(f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)),
        ]
    )
    inputs = (_bytes(name, 4 * words).view(np.uint32),)
    kernel = _kernel(name, _compiled(source, op=instruction), inputs, 4 * words)
    return Probe(kernel, inputs, THREADS * len(results))


def shared_store_probe(name: str) -> Probe:
    """Shared memory filled, then written by every lane, then read out whole."""
    instruction, size = getattr(ptx, name), access_bytes(name)
    words = max(THREADS * size // 4, 4 * THREADS)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *_shared_lines(_FILL, words),
            f"    op(base + types.uint32(tid * {size}), {', '.join(_value_words(instruction))})",
            *_shared_lines(_DRAIN, words),
        ]
    )
    inputs = (_bytes(name, 4 * words).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source, op=instruction), inputs, 4 * words), inputs, words)


def ldmatrix_probe(name: str, row_bytes: int = 80) -> Probe:
    """Every warp loads 8x8 matrices whose rows lie `row_bytes` apart."""
    instruction = getattr(ptx, name)
    words = 64 * row_bytes // 4
    results = _result_words(instruction)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *_shared_lines(_FILL, words),
            "    lane, warp = tid % 32, tid // 32",
            f"    r = op(base + types.uint32((warp * 16 + lane % 16) * {row_bytes} + lane // 16 * 16))",
            *(f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)),
        ]
    )
    inputs = (_bytes(name, 4 * words).view(np.uint32),)
    kernel = _kernel(name, _compiled(source, op=instruction), inputs, 4 * words)
    return Probe(kernel, inputs, THREADS * len(results))


def stmatrix_probe(name: str, row_bytes: int = 80) -> Probe:
    """The reverse of `ldmatrix_probe`."""
    words = 64 * row_bytes // 4
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *_shared_lines(_FILL, words),
            "    lane, warp = tid % 32, tid // 32",
            f"    address = base + types.uint32((warp * 16 + lane % 16) * {row_bytes} + lane // 16 * 16)",
            "    op(address, in0[tid * 4], in0[tid * 4 + 1], in0[tid * 4 + 2], in0[tid * 4 + 3])",
            *_shared_lines(_DRAIN, words),
        ]
    )
    inputs = (_bytes(name, 4 * words).view(np.uint32),)
    kernel = _kernel(name, _compiled(source, op=getattr(ptx, name)), inputs, 4 * words, min_arch=90)
    return Probe(kernel, inputs, words)


def cp_async_probe(name: str) -> Probe:
    """Every lane copies 0 to `size` bytes of its piece; the rest of the piece becomes zero."""
    size = int(name.rpartition("_")[2])
    words = max(THREADS * size // 4, 128)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *_shared_lines(_FILL, words),
            f"    source = ptx.global_address(in0) + types.uint64(tid) * types.uint64({size})",
            f"    op(base + types.uint32(tid * {size}), source, types.uint32(tid % {size + 1}))",
            "    ptx.cp_async_commit()",
            "    wait()",
            *_shared_lines(_DRAIN, words),
        ]
    )
    inputs = (_bytes(name, 4 * words).view(np.uint32),)
    function = _compiled(source, op=getattr(ptx, name), wait=ptx.cp_async_wait_group(0))
    return Probe(_kernel(name, function, inputs, 4 * words), inputs, words)


def bulk_load_probe(name: str) -> Probe:
    """One thread copies 4 KB with an mbarrier; all read it out."""
    words = 1024
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
            f"    bar = base + types.uint32({4 * words})",
            "    if tid == 0:",
            "        ptx.mbarrier_init(bar, types.uint32(1))",
            "        ptx.fence_mbarrier_init()",
            "    cuda.syncthreads()",
            "    if tid == 0:",
            f"        ptx.mbarrier_arrive_expect_tx(bar, types.uint32({4 * words}))",
            f"        ptx.bulk_load(base, ptx.global_address(in0), types.uint32({4 * words}), bar)",
            "    ptx.mbarrier_wait(bar, types.uint32(0))",
            *_shared_lines(_DRAIN, words),
        ]
    )
    inputs = (_bytes(name, 4 * words).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source), inputs, 4 * words + 16, min_arch=90), inputs, words)


def named_barrier_probe(name: str) -> Probe:
    """Two warps write and arrive, two wait and read."""
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
            "    if tid < 64:",
            "        ptx.st_shared_u32(types.uint32(base + tid * 4), in0[tid])",
            "        ptx.bar_arrive(types.uint32(1), types.uint32(128))",
            "        out[tid] = in0[tid + 64]",
            "    else:",
            "        ptx.bar_sync(types.uint32(1), types.uint32(128))",
            "        out[tid] = ptx.ld_shared_u32(types.uint32(base + (127 - tid) * 4))",
        ]
    )
    inputs = (_bytes(name, 512).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source), inputs, 256), inputs, THREADS)


def mbarrier_probe(name: str) -> Probe:
    """Two phases of an mbarrier: 128 arrivals before each, in the second only from even threads."""
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
            "    first, second = types.uint32(base + 512), types.uint32(base + 520)",
            "    if tid == 0:",
            "        ptx.mbarrier_init(first, types.uint32(128))",
            "        ptx.mbarrier_init(second, types.uint32(64))",
            "    cuda.syncthreads()",
            "    ptx.st_shared_u32(types.uint32(base + tid * 4), in0[tid])",
            "    ptx.mbarrier_arrive(first)",
            "    ptx.mbarrier_wait(first, types.uint32(0))",
            "    out[tid] = ptx.ld_shared_u32(types.uint32(base + (127 - tid) * 4))",
            "    ptx.mbarrier_arrive(first)",
            "    ptx.mbarrier_wait(first, types.uint32(1))",
            "    ptx.st_shared_u32(types.uint32(base + tid * 4), types.uint32(tid))",
            "    ptx.mbarrier_arrive_if(second, types.uint32(tid & 1 ^ 1))",
            "    ptx.mbarrier_wait(second, types.uint32(0))",
            "    out[tid + 128] = ptx.ld_shared_u32(types.uint32(base + (tid & 126) * 4))",
        ]
    )
    inputs = (_bytes(name, 512).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source), inputs, 528, min_arch=90), inputs, 2 * THREADS)


def mbarrier_wait_for_probe(name: str) -> Probe:
    """Not yet completed, whatever the time; completed; and the parity that a fresh mbarrier passes for."""
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    bar = ptx.shared_address(cuda.shared.array(0, types.uint8))",
            "    if tid == 0:",
            "        ptx.mbarrier_init(bar, types.uint32(128))",
            "    cuda.syncthreads()",
            "    out[tid] = ptx.mbarrier_wait_for(bar, types.uint32(0), in0[tid])",
            "    out[tid + 128] = ptx.mbarrier_wait_for(bar, types.uint32(1), in0[tid])",
            "    cuda.syncthreads()",
            "    ptx.mbarrier_arrive(bar)",
            "    ptx.mbarrier_wait(bar, types.uint32(0))",
            "    out[tid + 256] = ptx.mbarrier_wait_for(bar, types.uint32(0), in0[tid])",
            "    out[tid + 384] = ptx.mbarrier_wait_for(bar, types.uint32(1), in0[tid])",
        ]
    )
    inputs = (np.random.default_rng(0).integers(0, 20_000, THREADS, np.uint32),)  # nanoseconds
    return Probe(_kernel(name, _compiled(source), inputs, 16, min_arch=90), inputs, 4 * THREADS)


def copy_mbarrier_probe(name: str) -> Probe:
    """128 copies that an mbarrier counts as they land; each thread reads what another one copied."""
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
            "    landed = types.uint32(base + 512)",
            "    if tid == 0:",
            "        ptx.mbarrier_init(landed, types.uint32(128))",
            "    cuda.syncthreads()",
            "    source = ptx.global_address(in0) + types.uint64(tid) * types.uint64(4)",
            "    ptx.cp_async_ca_4(types.uint32(base + tid * 4), source, types.uint32(4))",
            "    ptx.cp_async_mbarrier_arrive(landed)",
            "    ptx.mbarrier_wait(landed, types.uint32(0))",
            "    out[tid] = ptx.ld_shared_u32(types.uint32(base + (127 - tid) * 4))",
        ]
    )
    inputs = (_bytes(name, 512).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source), inputs, 520, min_arch=90), inputs, THREADS)


def prefetch_probe(name: str) -> Probe:
    """A prefetch changes nothing."""
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    ptx.prefetch_global_l2(ptx.global_address(in0))",
            "    ptx.syncwarp()",
            "    out[tid] = in0[tid]",
        ]
    )
    inputs = (_bytes(name, 512).view(np.uint32),)
    return Probe(_kernel(name, _compiled(source), inputs), inputs, THREADS)


def access_bytes(name: str) -> int:
    """16 for ld_global_v4_u32, 2 for st_shared_u16."""
    parts = name.split("_")
    count = int(parts[-2][1:]) if parts[-2] in ("v2", "v4") else 1
    return count * int(parts[-1][1:]) // 8


def _value_words(instruction: Instruction) -> list[str]:
    """Operands of a store: consecutive words of in0."""
    scalars = [scalar for _, scalar in instruction.operands[1:]]
    words = [f"in0[tid * {len(scalars)} + {i}]" for i in range(len(scalars))]
    return [f"ptx.bitcast_f32_u32({w})" if s is f32 else w for w, s in zip(words, scalars, strict=True)]


def _bytes(name: str, count: int) -> np.ndarray:
    """Random bytes; for f32 accesses, random ordinary floats."""
    rng = np.random.default_rng(count)
    if "f32" in name:
        return rng.normal(size=count // 4).astype(np.float32).view(np.uint8)
    return rng.integers(0, 256, count).astype(np.uint8)


def _names(*prefixes: str) -> list[str]:
    return [name for name in dir(ptx) if name.startswith(prefixes)]


@functools.cache
def probes() -> tuple[Probe, ...]:
    """A probe for every instruction that fits one of the patterns above."""
    found = []
    for name, (words, rtol, atol) in _REGISTER_CASES.items():
        rng = np.random.default_rng(len(name))
        found.append(register_probe(name, getattr(ptx, name), words(rng), rtol, atol))
    for lut in (0x6A, 0xE8, 0xEA):
        rng = np.random.default_rng(lut)
        found.append(register_probe(f"lop3_{lut:#x}", ptx.lop3(lut), [_words(rng) for _ in range(3)]))
    found += [global_load_probe(name) for name in _names("ld_global", "ld_relaxed")]
    found += [global_store_probe(name) for name in _names("st_global", "st_relaxed")]
    found += [shared_load_probe(name) for name in _names("ld_shared")]
    found += [shared_store_probe(name) for name in _names("st_shared")]
    found += [ldmatrix_probe(name) for name in _names("ldmatrix")]
    found += [stmatrix_probe(name) for name in _names("stmatrix")]
    found += [cp_async_probe(name) for name in _names("cp_async_ca", "cp_async_cg")]
    found += [
        bulk_load_probe("bulk_load"),
        named_barrier_probe("bar_sync"),
        mbarrier_probe("mbarrier_arrive"),
        mbarrier_wait_for_probe("mbarrier_wait_for"),
        copy_mbarrier_probe("cp_async_mbarrier_arrive"),
    ]
    found += [prefetch_probe("prefetch_global_l2")]
    return tuple(found)
