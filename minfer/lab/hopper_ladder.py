"""The Hopper ladders: from mma.sync to wgmma and TMA, each step a config; what it changes and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from minfer.arithmetic.devices import H200
from minfer.arithmetic.ledger import bits_a_weight
from minfer.lab.background import BackgroundCompiler
from minfer.lab.kernel_view import KernelView, line_of

NT = 2048
MMA_FLOP, MMA_BYTES = 2 * 16 * 8 * 16, 512
"""FLOP of an m16n8k16 product; bytes that an ldmatrix.x4 reads."""


@dataclass(frozen=True)
class Step:
    """A step of a ladder: `why` is the mechanism; `family` the kernels that it is of."""

    name: str
    config: Any
    family: str
    why: str


def gemm_ladder() -> tuple[Step, ...]:
    """The f16 GEMM from the seed's tile to Hopper's, then from the file's own blocks."""
    from minfer.cuda.gemm import GemmConfig
    from minfer.cuda.gemm_hopper import GemmHopperConfig, choose
    from minfer.cuda.w4a16 import choose as choose_w4a16

    square = {"tile_n": 128, "tile_m": 128, "layout": "swizzled"}
    chosen = choose(NT, 4608, 3584)
    return (
        Step("64 x 64", GemmConfig(), "seed", "the seed's first tile"),
        Step("64 x 128", GemmConfig(tile_m=128), "seed", "A is shared by twice the outputs"),
        Step("swizzled", GemmConfig(tile_m=128, layout="swizzled"), "mma.sync", "copies without conflicts"),
        Step("128 x 128", GemmConfig(**square, stages=4), "mma.sync", "fewer bytes a FLOP, more in flight"),
        Step("k-step 64", GemmConfig(**square, tile_k=64, stages=3), "mma.sync", "half the barriers"),
        Step(
            "128 x 256",
            GemmConfig(128, 256, 64, 3, layout="swizzled"),
            "mma.sync",
            "fewer bytes again; 128 sums a thread leave no room",
        ),
        Step("wgmma + TMA", GemmHopperConfig(), "wgmma", "operands from shared memory, a copying thread"),
        Step("full waves", GemmHopperConfig(192), "wgmma", "384 tiles fill three waves, 288 did not"),
        Step(
            "three consumers",
            replace(chosen, pdl=False),
            "wgmma",
            "a fifth fewer bytes a FLOP, waves as full",
        ),
        Step(
            "dependent launch", chosen, "wgmma", "weights are on their way before the kernel before has ended"
        ),
        Step("W4A16", choose_w4a16("Q4_K", NT, 4608, 3584), "from blocks", "no f16 copy of the weights"),
    )


def attention_ladder(heads: int = 28, kv_heads: int = 4) -> tuple[Step, ...]:
    """The steps of the Hopper attention, with what each is for."""
    from minfer.cuda.attention import hopper_steps

    why = {
        "no overlap": "wgmma and TMA, persistent; one product at a time",
        "overlap": "the next Q K^T is issued with this P V: both run under the exponentials",
        "LPT order": "the longest tiles first, each to the block that has least to do",
        "late V": "V is awaited only when P V needs it",
        "lazy rescale": "the sums are rescaled only where a maximum has outgrown its reference by 2^8",
        "no running maximum": "the diagonal's maximum is the reference: no shuffles afterwards",
        "staggered start": "one warpgroup's products run under the other's exponentials",
        "Q in registers": "wgmma reads A from registers: a third less from shared memory",
    }
    steps = hopper_steps(heads, kv_heads)
    return tuple(Step(name, config, "wgmma", why.get(name, "")) for name, config in steps.items())


def change(before: Any, after: Any) -> str:
    """What differs between two configs, field by field; between two families their names."""
    if type(before) is not type(after):
        return f"{type(before).__name__} -> {type(after).__name__}"
    names = [f.name for f in fields(after) if getattr(before, f.name) != getattr(after, f.name)]
    return ", ".join(f"{name} {getattr(before, name)} -> {getattr(after, name)}" for name in names) or "-"


def change_rows(steps: Sequence[Step]) -> list[dict]:
    """Every step, what it changes in the config of the one before, and why."""
    rows = [{"step": steps[0].name, "config": str(steps[0].config), "change": "-", "why": steps[0].why}]
    for before, step in pairwise(steps):
        rows.append(
            {
                "step": step.name,
                "config": str(step.config),
                "change": change(before.config, step.config),
                "why": step.why,
            }
        )
    return rows


def ledger_rows(steps: Sequence[Step]) -> list[dict]:
    """What f16 tiles cost: FLOP of a product instruction, instructions for 1 MFLOP, bytes that the products
    read from shared memory and that are copied into it for 1 kFLOP, sums a thread.

    mma.sync takes operands from registers: `ldmatrix` brings them, once for each warp that needs them. wgmma
    reads both operands from shared memory: for each 64 rows of A all of B.
    """
    rows = []
    for step in steps:
        config = step.config
        if step.family == "from blocks":
            continue
        flop = 2 * config.tile_n * config.tile_m * config.tile_k
        copied = 2 * (config.tile_n + config.tile_m) * config.tile_k
        if step.family == "wgmma":
            one = 2 * 64 * config.tile_m * 16
            blocks, loads = config.tile_n // 64, 0
            read = 2 * (config.tile_n + blocks * config.tile_m) * config.tile_k
            sums = config.warpgroups.row_blocks * config.tile_m // 2
        else:
            one = MMA_FLOP
            tokens, outputs = config.warp_tile
            loads = config.warps * (tokens + outputs) // 16 * (config.tile_k // 16)
            read, sums = loads * MMA_BYTES, config.accumulators
        rows.append(
            {
                "step": step.name,
                "FLOP an instruction": one,
                "products a MFLOP": flop / one / flop * 1e6,
                "ldmatrix a MFLOP": loads / flop * 1e6,
                "read from shared (B a kFLOP)": read / flop * 1e3,
                "copied in (B a kFLOP)": copied / flop * 1e3,
                "sums a thread": sums,
            }
        )
    return rows


SHARED_BYTES, L2_BYTES = 128, 56
"""Bytes a cycle that a multiprocessor reads from shared memory, and gets from L2 (measured)."""
MMA_SHARE = 0.575
"""Of the tensor cores' cycles that mma.sync alone keeps busy on Hopper (measured, `minfer ceilings`)."""


def bound(step: Step, nt: int = NT, od: int = 4608) -> float:
    """TFLOPS that a step of the GEMM ladder can reach at most on an H200, by arithmetic alone: its tensor
    cores, its reads of shared memory or its copies, whichever takes longest, times the share of the waves
    that is useful. Latencies, barriers, conflicts and power are left out."""
    config = step.config
    if step.family == "from blocks":  # rows of weights x tokens; weights reach wgmma through registers
        outputs, tokens = config.rows, config.tokens
        packed = bits_a_weight(config.format) / 8 * outputs
        copied = (2 * tokens + packed) / (2 * tokens * outputs) * 1e3
        read = (2 * tokens * config.consumers + packed) / (2 * tokens * outputs) * 1e3
    else:
        outputs, tokens = config.tile_m, config.tile_n
        (row,) = ledger_rows([step])
        copied, read = row["copied in (B a kFLOP)"], row["read from shared (B a kFLOP)"]
    sms = H200.sms
    rate = H200.tensor_f16 / H200.boost / sms  # FLOP a cycle of a multiprocessor
    share = MMA_SHARE if step.family in ("seed", "mma.sync") else 1.0
    cycles = max(1e3 / (rate * share), read / SHARED_BYTES, copied / L2_BYTES)  # a kFLOP
    rounds = -(-(-(-nt // tokens) * -(-od // outputs)) // sms)
    useful = nt * od / (rounds * sms * tokens * outputs)
    return 1e3 / cycles * H200.boost * sms * useful / 1e12


def schedule_rows(nts: Sequence[int] = (512, NT, 8192), heads: int = 28, kv_heads: int = 4) -> list[dict]:
    """What the attention's order of tiles costs, by the schedule alone: how much of the blocks' time is work
    when each takes every n-th tile, and in LPT order, and how many times as fast LPT makes it."""
    from minfer.cuda.attention import hopper_steps

    steps = hopper_steps(heads, kv_heads)
    return [
        {
            "tokens": nt,
            "strided": (strided := steps["overlap"].balance(nt, H200.sms)),
            "LPT": (lpt := steps["LPT order"].balance(nt, H200.sms)),
            "predicted": lpt / strided,
        }
        for nt in nts
    ]


LOST = (
    {
        "probe": "clusters of 4",
        "of": "GEMM",
        "idea": "a fourth of the reads of B",
        "outcome": "x0.6",
        "why": "of the grid's 33 clusters 30 fit at a time: three run their share alone, after the others",
    },
    {
        "probe": "two blocks share a tile's depth",
        "of": "GEMM, o and down, 512 tokens",
        "idea": "128 x 224, not 128 x 112: a quarter fewer bytes (without the exchange x1.03, x1.04)",
        "outcome": "x0.86, x1.00",
        "why": "to exchange 7 MB of sums through L2 takes 8,000 cycles (down at 128 tokens: x1.57)",
    },
    {
        "probe": "the same, sums exchanged in the middle",
        "of": "GEMM, o and down, 512 tokens",
        "idea": "wide k-tiles first; then each block's own columns, under which sums change hands",
        "outcome": "x0.92, x1.015; sustained x0.90, x0.99",
        "why": "o is too short to hide them; of down's 4 % a third is left, not explained",
    },
    {
        "probe": "stream-k",
        "of": "GEMM, o, 8192 tokens",
        "idea": "cut the last wave's tiles along k: 4.6 waves instead of 5",
        "outcome": "x0.96",
        "why": "a block hands on 192 sums a thread through L2, and idle SMs give the others a higher clock",
    },
    {
        "probe": "dependent launch without seats",
        "of": "GEMM, 512 tokens",
        "idea": "load weights while the kernel before ends",
        "outcome": "x1.00 to x1.01, with seats x1.01 to x1.02",
        "why": "a block starts where one has ended: neighbours are apart, and the clock falls",
    },
    {
        "probe": "seats by the number of the multiprocessor",
        "of": "GEMM, 512 tokens",
        "idea": "an order that needs no measurement",
        "outcome": "x0.93 to x0.96",
        "why": "numbers go across the GPCs in turn: no blocks of a GPC share a tile",
    },
    {
        "probe": "no producer",
        "of": "GEMM, tiles of 128 tokens, 512 tokens",
        "idea": "a consumer's warp loads, as with 256 tokens",
        "outcome": "x0.96 to x0.99",
        "why": "it waits until every consumer has read a stage before it goes on with its own products",
    },
    {
        "probe": "more buffers for C",
        "of": "GEMM, 256 x 224",
        "idea": "C also leaves through the stage of the last k-tile: four buffers a warp instead of two",
        "outcome": "x1.00",
        "why": "not explained; perhaps the way to L2 takes the time",
    },
    {
        "probe": "blocks of rows three k-tiles apart, not two",
        "of": "GEMM, 256 tokens, 8192 tokens",
        "idea": "half as much time again to finish one under the wgmmas of the other",
        "outcome": "x0.99 to x1.00",
        "why": "all three stages of the ring are held meanwhile, and the next loads start late",
    },
    {
        "probe": "narrower chunks of C",
        "of": "GEMM, o and q+k+v, 8192 tokens",
        "idea": "32 columns: no column of 224 is stored twice, five buffers a warp instead of two",
        "outcome": "x1.00, x0.99",
        "why": "not explained; without any stores x1.02 and x1.015",
    },
    {
        "probe": "L2 policies",
        "of": "GEMM, 8192 tokens",
        "idea": "A evicted last, B and C first: gate and up read 1.24 GB from memory instead of 1.60",
        "outcome": "x1.006; others x0.97 to x1.00",
        "why": "where waves do not pass over the same A, what is evicted first is needed again",
    },
    {
        "probe": "256 x 184, 192 x 200, 256 x 152",
        "of": "GEMM, o and down, 8192 tokens",
        "idea": "11 to 20 % fewer bytes than 128 x 256, waves as full",
        "outcome": "x0.96 to x0.99",
        "why": "1 to 5 % more cycles than waves foretell: not explained (256 x 224 is x1.04)",
    },
    {
        "probe": "clusters of 2",
        "of": "GEMM",
        "idea": "two blocks load half of a tile of A or B each, by multicast to both",
        "outcome": "x0.95 to x1.00",
        "why": "dealt out to all GPCs: 28 to 30 million sectors from L2 instead of 26 (down, 512 tokens)",
    },
    {
        "probe": "the same as dependent launches with seats",
        "of": "GEMM, 512 tokens",
        "idea": "shared loads, and neighbours on the chip",
        "outcome": "x0.61 to x0.85",
        "why": "not explained; as ordinary launches with seats x0.98 to x1.01",
    },
    {
        "probe": "neighbours share A",
        "of": "GEMM, 512 tokens",
        "idea": "tiles in strips of 2 or 4 columns: the two blocks of a TPC read one tile of A, not of B",
        "outcome": "x0.97 to x1.00",
        "why": "not explained: 24 million sectors from L2 instead of 26 (down, 512 tokens)",
    },
    {
        "probe": "tiles in random order",
        "of": "GEMM, down, 512 tokens",
        "idea": "the opposite: how much the order of tiles is worth",
        "outcome": "x0.8",
        "why": "blocks of a GPC share nothing: two fifths more is read from L2",
    },
    {
        "probe": "a tile that can rotate, where the fastest cannot",
        "of": "GEMM, q+k+v, 512 and 1024 tokens",
        "idea": "RoPE and the KV store in the epilogue at every length",
        "outcome": "x0.8 to x0.9",
        "why": "128 x 192 fills the waves worse than 128 x 144, by more than the pass behind it takes",
    },
    {
        "probe": "unpacking between wgmmas",
        "of": "W4A16",
        "idea": "a k16 step is unpacked and loaded behind each wgmma: even work between any two",
        "outcome": "Q6_K x0.94 to x0.98, Q4_K x1.00",
        "why": "it runs under them anyway: a wgmma of register operands does not hold its warp (ncu)",
    },
    {
        "probe": "Q6_K copied with every chunk clamped",
        "of": "W4A16, down, 2048 tokens",
        "idea": "any size and any end of memory by one path",
        "outcome": "x0.95",
        "why": "530 instructions a block for each copying warp: consumers wait a tenth of their time (ncu)",
    },
    {
        "probe": "Q6_K by TMA, eight rows as one",
        "of": "W4A16",
        "idea": "rows of 210-byte blocks are whole 16 bytes only eight at a time; a box may start anywhere",
        "outcome": "illegal instruction",
        "why": "TMA's first column must be a multiple of 16 bytes too",
    },
    {
        "probe": "Q6_K with three consumers",
        "of": "W4A16, down, 2048 tokens",
        "idea": "more time to unpack under the others' products",
        "outcome": "x0.78",
        "why": "twelve warps unpack and three copy: more than is issued beside wgmma",
    },
    {
        "probe": "Q6_K, a bulk copy for each row",
        "of": "W4A16, down, 2048 tokens",
        "idea": "128 copies instead of 1792 of 16 bytes",
        "outcome": "x0.68",
        "why": "a warp starts them one lane after the other, some 50 cycles each",
    },
    {
        "probe": "tiles of 192 rows in both formats",
        "of": "W4A16, q+k+v, 2048 tokens",
        "idea": "each consumer's rows in one format: two full waves instead of three",
        "outcome": "x1.00, sustained x0.96",
        "why": "three consumers of Q6_K are slow (above), and one block in four has such a tile",
    },
    {
        "probe": "two blocks a tile of 256 tokens",
        "of": "W4A16, o, 512 tokens",
        "idea": "a weight is unpacked for twice as many tokens, each block takes half of the depth",
        "outcome": "x0.91",
        "why": "28 k-tiles a block are not long beside the exchange; with 148, for down, x1.08 to x1.27",
    },
    {
        "probe": "the next k-tile awaited right behind wgmma",
        "of": "W4A16",
        "idea": "a branch there keeps the assembler from unpacking between a group's four wgmmas",
        "outcome": "x0.98 to x1.00",
        "why": "the tensor cores had enough to do anyway",
    },
    {
        "probe": "half of the diagonal tile",
        "of": "attention",
        "idea": "skip what the causal mask throws away",
        "outcome": "x0.95",
        "why": "not explained",
    },
)
"""Probes that lost, as read off single experiments on an H200, 2026-11-30 and 2026-12-01: outcome is speed
against the step that stayed."""


def hopper_kernel_view(arch: str = "sm_90a") -> KernelView:
    """The Hopper GEMM's source, PTX and SASS, at its consumers' call."""
    from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper

    configs = {
        "256 wide": GemmHopperConfig(),
        "192 wide": GemmHopperConfig(192),
        "224 wide, 256 tokens": GemmHopperConfig(224, 3, tile_n=256, skew=2),
        "256 wide, swiglu": GemmHopperConfig(epilogue="swiglu"),
        "256 wide, added to f32": GemmHopperConfig(out="f32", epilogue="add"),
    }
    line = line_of(make_gemm_hopper(GemmHopperConfig()), "consume(")
    compiler = BackgroundCompiler("minfer.cuda.gemm_hopper:make_gemm_hopper", listing=True)
    return KernelView(compiler, configs, line, arch)
