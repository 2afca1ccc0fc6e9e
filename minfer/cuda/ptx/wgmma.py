"""wgmma: asynchronous matrix multiply-accumulate by a warpgroup of 128 threads (sm_90a).

The compiler does not know that wgmma is asynchronous. Two things keep its results right and its speed up,
both built in here: one assembly block holds a whole stage (fence, every k step, commit), and a wait takes the
accumulators as operands, so that nothing that reads them moves above it (else ptxas serialises everything:
C7514).

Shared-memory operands are named by 64-bit descriptors. Their high word is constant for a tile layout and part
of the instruction; the low word, `wgmma_descriptor(address, leading_bytes)`, is an operand.
"""

import functools
import itertools

from minfer.cuda.checks import check_whole
from minfer.cuda.instruction import Instruction, Registers, device_function, f32, instruction, s32, u32
from minfer.cuda.ptx.stub import stub_of

# PTX types of D, A and B; k of a step; accumulator.
_DTYPES = {
    "f16": ("f32.f16.f16", "k16", f32),
    "bf16": ("f32.bf16.bf16", "k16", f32),
    "tf32": ("f32.tf32.tf32", "k8", f32),
    "s8": ("s32.s8.s8", "k32", s32),
    "u8": ("s32.u8.s8", "k32", s32),
}
_SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


@device_function
def wgmma_descriptor(address, leading_bytes):
    """Low word of a shared-memory matrix descriptor (PTX ISA 9.7.15.5.1.2.2): the address and the leading
    dimension byte offset, both in units of 16 bytes. The offset matters for MN-major (transposed) operands
    only: it is the distance to the next swizzle atom along the major dimension; pass 16 otherwise."""
    return ((address & 0x3FFFF) >> 4) | ((leading_bytes >> 4) << 16)


def wgmma_high_word(swizzle: int = 128, stride_bytes: int = 1024) -> int:
    """High word of a descriptor: the swizzle, and the bytes from 8 rows to the next 8."""
    return (_SWIZZLE_CODES[swizzle] << 30) | (stride_bytes >> 4)


@functools.cache
def wgmma(
    n: int,
    dtype: str = "f16",
    a: str = "shared",
    k_steps: int = 4,
    accumulate: bool | str = True,
    a_offsets: tuple[int, ...] | None = None,
    b_offsets: tuple[int, ...] | None = None,
    transpose_b: bool = False,
    swizzle: int = 128,
    stride_bytes: int | None = None,
    wait: int | None = None,
    row_blocks: int = 1,
    high: str = "constant",
) -> Instruction:
    """Factory: one stage of D[64, n] (+)= A[64, K] B[K, n] as one block: fence, `k_steps` x wgmma, commit,
    maybe a wait.

    The instruction's operands: the accumulators (local array of n / 2 f32 or s32), then A (descriptor low
    word, or with a="registers" a local array of 4 * k_steps u32), then B's descriptor low word, then with
    accumulate="operand" a u32, then with high="operand" the descriptors' high words.

    - `dtype`: "f16", "bf16" (16 columns of k a step), "tf32" (8), "s8", "u8" (A unsigned, B signed; 32): 32
      bytes each.
    - `accumulate`: True adds to D; False overwrites D (nothing to zero before); "operand" adds where it is
      nonzero.
    - `a_offsets`, `b_offsets`: bytes from the descriptor's address to each k step; default 32 a step.
    - `transpose_b`: B is stored with n contiguous (MN-major); 16-bit types only.
    - `swizzle`: 128, 64, 32 or 0 bytes, as the tile was written; `stride_bytes`: from 8 rows to the next 8
      (default 8 * swizzle).
    - `wait`: also wait until at most so many groups are pending.
    - `high`: "constant", or "operand": both high words (`wgmma_high_word`) come in registers. The assembler
      loads a constant anew before every wgmma.
    - `row_blocks`: A in shared memory has so many times 64 rows, and D as many times n / 2 accumulators,
      those of a block of 64 rows behind those of the one before.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"wgmma: dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
    for name, value, least in (("n", n, 8), ("k steps", k_steps, 1), ("blocks of 64 rows", row_blocks, 1)):
        check_whole(f"wgmma: {name}", value, least)
    if wait is not None:
        check_whole("wgmma: pending groups", wait, 0)
    types, k_shape, accumulator = _DTYPES[dtype]
    if n % 8 or not 8 <= n <= 256 or (accumulator is s32 and n > 32 and n % 16):
        raise ValueError(
            f"wgmma: n = {n} for {dtype}: must be a multiple of 8 (s8 above 32: of 16) up to 256"
        )
    if a not in ("shared", "registers") or accumulate not in (True, False, "operand"):
        raise ValueError(f"wgmma: a = {a!r}, accumulate = {accumulate!r}")
    if transpose_b and dtype not in ("f16", "bf16"):
        raise ValueError(f"wgmma: {dtype} operands cannot be transposed")
    if swizzle not in _SWIZZLE_CODES:
        raise ValueError(f"wgmma: swizzle {swizzle}: must be one of {', '.join(map(str, _SWIZZLE_CODES))}")
    default = tuple(32 * k for k in range(k_steps))
    a_offsets, b_offsets = a_offsets or default, b_offsets or default
    if len(b_offsets) != k_steps or len(a_offsets) != k_steps:
        raise ValueError(f"wgmma: {k_steps} k steps need as many offsets")
    if row_blocks > 1 and a != "shared":
        raise ValueError(f"wgmma: {row_blocks} blocks of 64 rows of A in {a}")
    stride_bytes = 8 * swizzle if stride_bytes is None else stride_bytes
    if high not in ("constant", "operand") or (high == "operand" and a != "shared"):
        raise ValueError(f"wgmma: high = {high!r} with A in {a}")
    word = wgmma_high_word(swizzle, stride_bytes)

    def text(places: dict) -> str:
        lines = [
            "{",
            ".reg .pred first, rest;",
            ".reg .b32 t;",
            ".reg .b64 da, db;",
            "setp.eq.b32 rest, 0, 0;",
        ]
        high_a, high_b = (places["high_a"], places["high_b"]) if high == "operand" else (word, word)
        condition = {True: "0, 0", False: "0, 1"}.get(accumulate)
        lines.append(
            f"setp.eq.b32 first, {condition};"
            if condition
            else f"setp.ne.b32 first, {places['accumulate']}, 0;"
        )
        lines.append("wgmma.fence.sync.aligned;")
        # scale-a and scale-b, then the transpose flags of A (in shared memory only) and B.
        immediates = "" if accumulator is s32 else ", 1, 1"
        if dtype in ("f16", "bf16"):
            immediates += (", 0" if a == "shared" else "") + f", {int(transpose_b)}"
        for block, k in itertools.product(range(row_blocks), range(k_steps)):
            if a == "shared":
                offset = a_offsets[k] + block * 8 * stride_bytes
                lines += [f"add.u32 t, {places['a']}, {offset >> 4};", f"mov.b64 da, {{t, {high_a}}};"]
                left = "da"
            else:
                left = "{" + ", ".join(places["a"][4 * k : 4 * k + 4]) + "}"
            lines += [f"add.u32 t, {places['b']}, {b_offsets[k] >> 4};", f"mov.b64 db, {{t, {high_b}}};"]
            outputs = ", ".join(places["d"][block * n // 2 : (block + 1) * n // 2])
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{n}{k_shape}.{types} {{{outputs}}}, {left}, db, "
                f"{'rest' if k else 'first'}{immediates};"
            )
        lines.append("wgmma.commit_group.sync.aligned;")
        if wait is not None:
            lines.append(f"wgmma.wait_group.sync.aligned {wait};")
        return "\n".join([*lines, "}"])

    operands = {
        "d": Registers(accumulator, row_blocks * n // 2, "out" if accumulate is False else "inout"),
        "a": u32 if a == "shared" else Registers(u32, 4 * k_steps, "in"),
        "b": u32,
    }
    if accumulate == "operand":
        operands["accumulate"] = u32
    if high == "operand":
        operands |= {"high_a": u32, "high_b": u32}
    return _block(
        "wgmma",
        text,
        operands,
        section="9.7.15.5.2 wgmma.mma_async",
        early_clobber=accumulate is False,
        parameters={
            "n": n,
            "dtype": dtype,
            "a": a,
            "k_steps": k_steps,
            "accumulate": accumulate,
            "a_offsets": a_offsets,
            "b_offsets": b_offsets,
            "transpose_b": transpose_b,
            "swizzle": swizzle,
            "stride_bytes": stride_bytes,
            "wait": wait,
            "row_blocks": row_blocks,
            "high": word if high == "operand" else None,
        },
        documentation=f"D[{64 * row_blocks}, {n}] (+)= A B in {k_steps} steps of m64n{n}{k_shape} {types}.",
    )


@functools.cache
def wgmma_wait(pending: int, count: int, dtype: str = "f32") -> Instruction:
    """Factory: wait until at most `pending` groups are in flight. Its operand is a local array of `count`
    accumulators (f32 or s32) that passes through unchanged, so that no read of it moves above the wait."""
    check_whole("wgmma_wait: pending groups", pending, 0)
    check_whole("wgmma_wait: registers", count, 1)
    scalar = {"f32": f32, "s32": s32}[dtype]
    return _block(
        "wgmma_wait",
        lambda places: f"wgmma.wait_group.sync.aligned {pending};",
        {"d": Registers(scalar, count)},
        section="9.7.15.7.3 wgmma.wait_group",
        parameters={"pending": pending, "count": count, "dtype": dtype},
        documentation=f"Wait until at most {pending} wgmma groups are pending.",
    )


@functools.cache
def pin(count: int, dtype: str = "u32") -> Instruction:
    """Factory: an empty block through which a local array of `count` registers passes, so that the compiler
    computes them here and not later (where wgmma would wait for them)."""
    scalar = {"f32": f32, "s32": s32, "u32": u32}[dtype]
    return _block(
        "pin",
        lambda places: "",
        {"values": Registers(scalar, count)},
        section="4.3.2 Instruction Statements",
        arch=80,
        arch_specific=False,
        collective=False,
        parameters={"count": count, "dtype": dtype},
        documentation="Keep the computation of these registers above this point.",
    )


def _block(
    name: str,
    text,
    operands: dict,
    *,
    section: str,
    parameters: dict,
    documentation: str,
    early_clobber: bool = False,
    arch: int = 90,
    arch_specific: bool = True,
    collective: bool = True,
) -> Instruction:
    return instruction(
        text,
        section=section,
        name=name,
        arch=arch,
        arch_specific=arch_specific,
        collective=collective,
        early_clobber=early_clobber,
        parameters=parameters,
    )(stub_of(operands, documentation))
