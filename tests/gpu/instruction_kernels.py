"""Small kernels around one PTX instruction each, with random inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from minfer.cuda import ptx
from minfer.cuda.instruction import Instruction, f32, s32
from tests.gpu.barrier_kernels import barrier_probes
from tests.gpu.instruction_probe import (
    DRAIN,
    FILL,
    THREADS,
    Probe,
    compiled,
    probe_kernel,
    random_bytes,
    result_words,
    shared_lines,
)

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
    results = result_words(instruction)
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
    kernel = probe_kernel(name, compiled(source, op=instruction), inputs)
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
    results = result_words(instruction)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            f"    r = op(ptx.global_address(in0) + types.uint64(tid) * types.uint64({size}))",
            *(f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)),
        ]
    )
    inputs = (random_bytes(name, THREADS * size),)
    return Probe(probe_kernel(name, compiled(source, op=instruction), inputs), inputs, THREADS * len(results))


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
    inputs = (random_bytes(name, THREADS * 16).view(np.uint32),)
    return Probe(probe_kernel(name, compiled(source, op=instruction), inputs), inputs, THREADS * size // 4)


def shared_load_probe(name: str) -> Probe:
    """As `global_load_probe`, from shared memory."""
    instruction, size = getattr(ptx, name), access_bytes(name)
    results, words = result_words(instruction), max(THREADS * size // 4, 128)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *shared_lines(FILL, words),
            f"    r = op(base + types.uint32(tid * {size}))",
            *(f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)),
        ]
    )
    inputs = (random_bytes(name, 4 * words).view(np.uint32),)
    kernel = probe_kernel(name, compiled(source, op=instruction), inputs, 4 * words)
    return Probe(kernel, inputs, THREADS * len(results))


def shared_store_probe(name: str) -> Probe:
    """Shared memory filled, then written by every lane, then read out whole."""
    instruction, size = getattr(ptx, name), access_bytes(name)
    words = max(THREADS * size // 4, 4 * THREADS)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *shared_lines(FILL, words),
            f"    op(base + types.uint32(tid * {size}), {', '.join(_value_words(instruction))})",
            *shared_lines(DRAIN, words),
        ]
    )
    inputs = (random_bytes(name, 4 * words).view(np.uint32),)
    return Probe(probe_kernel(name, compiled(source, op=instruction), inputs, 4 * words), inputs, words)


def ldmatrix_probe(name: str, row_bytes: int = 80) -> Probe:
    """Every warp loads 8x8 matrices whose rows lie `row_bytes` apart."""
    instruction = getattr(ptx, name)
    words = 64 * row_bytes // 4
    results = result_words(instruction)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *shared_lines(FILL, words),
            "    lane, warp = tid % 32, tid // 32",
            f"    r = op(base + types.uint32((warp * 16 + lane % 16) * {row_bytes} + lane // 16 * 16))",
            *(f"    out[types.int32({i * THREADS}) + tid] = {word}" for i, word in enumerate(results)),
        ]
    )
    inputs = (random_bytes(name, 4 * words).view(np.uint32),)
    kernel = probe_kernel(name, compiled(source, op=instruction), inputs, 4 * words)
    return Probe(kernel, inputs, THREADS * len(results))


def stmatrix_probe(name: str, row_bytes: int = 80) -> Probe:
    """The reverse of `ldmatrix_probe`."""
    words = 64 * row_bytes // 4
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *shared_lines(FILL, words),
            "    lane, warp = tid % 32, tid // 32",
            f"    address = base + types.uint32((warp * 16 + lane % 16) * {row_bytes} + lane // 16 * 16)",
            "    op(address, in0[tid * 4], in0[tid * 4 + 1], in0[tid * 4 + 2], in0[tid * 4 + 3])",
            *shared_lines(DRAIN, words),
        ]
    )
    inputs = (random_bytes(name, 4 * words).view(np.uint32),)
    kernel = probe_kernel(name, compiled(source, op=getattr(ptx, name)), inputs, 4 * words, min_arch=90)
    return Probe(kernel, inputs, words)


def cp_async_probe(name: str) -> Probe:
    """Every lane copies 0 to `size` bytes of its piece; the rest of the piece becomes zero."""
    size = int(name.rpartition("_")[2])
    words = max(THREADS * size // 4, 128)
    source = "\n".join(
        [
            "def kernel(in0, out):",
            *shared_lines(FILL, words),
            f"    source = ptx.global_address(in0) + types.uint64(tid) * types.uint64({size})",
            f"    op(base + types.uint32(tid * {size}), source, types.uint32(tid % {size + 1}))",
            "    ptx.cp_async_commit()",
            "    wait()",
            *shared_lines(DRAIN, words),
        ]
    )
    inputs = (random_bytes(name, 4 * words).view(np.uint32),)
    function = compiled(source, op=getattr(ptx, name), wait=ptx.cp_async_wait_group(0))
    return Probe(probe_kernel(name, function, inputs, 4 * words), inputs, words)


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
    inputs = (random_bytes(name, 512).view(np.uint32),)
    return Probe(probe_kernel(name, compiled(source), inputs), inputs, THREADS)


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


def _names(*prefixes: str) -> list[str]:
    return [name for name in dir(ptx) if name.startswith(prefixes)]


@functools.cache
def probes() -> tuple[Probe, ...]:
    """A probe for every instruction that fits one of the patterns above, and those of barriers."""
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
    return (*found, *barrier_probes(), prefetch_probe("prefetch_global_l2"))
