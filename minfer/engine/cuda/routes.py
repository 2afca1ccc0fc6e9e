"""Routes: which kernels a prefill takes, and how a token is decoded.

    f16         mma.sync GEMMs (128x128x64 or 128x256x64, 3 stages, swizzled) over f16 weights; from sm_80 on
    f16-wgmma   Hopper's GEMM (wgmma, TMA) over f16 weights; sm_90 only. On its way out it adds to the f32
                residual stream, applies the gated activation, rotates q and k and fills the KV cache
    mmq, mmq_raw, mmq_raw_wide, mmq_fast
                int8 tensor cores straight from the quantized blocks, on activations quantized to int8 (seed
                003): weights expanded in shared memory, staged as raw bytes, that on a wider tile, and what
                is fastest since. No f16 copy of the weights; see `minfer.engine.cuda.mmq` for what takes the
                place of a kernel that cannot run
    w4a16       Hopper's GEMM straight from Q4_K and Q6_K blocks, which become f16 in registers: as exact as
                f16-wgmma, without an f16 copy of the weights; sm_90 only. Other formats are copied
    w4a8        the same, but gate and up of Q4_K, half of all work, are multiplied in int8: faster, and less
                exact (0.9 % of the product's rms instead of 0.04 %)
    auto        f16-wgmma on sm_90, or w4a16 where its f16 copies do not fit; else f16

A decoded token reads the blocks on every route: on sm_90 by one kernel for all of it, behind a small one
that brings its embedding, where it takes the model's formats and shapes, else by one kernel an operation.

f16-wgmma, w4a16, w4a8 and, on sm_90, mmq_fast take Hopper's attention too, where a chunk of the prompt stays
f16 from product to product.

The switches of the campaign's seeds select its own f16 kernels on the route f16: MINFER_GEMM_TM (64, 128 or
256: the tile's outputs; 128 where only others are set), MINFER_GEMM_K64 (1: k-steps of 64), MINFER_GEMM_AF32
(1: activations stay f32 and are converted in shared memory); MINFER_MMQ=1 is the route mmq, MINFER_MMQ_RAW=1
the route mmq_raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minfer.cuda.attention import seed_steps
from minfer.cuda.gemm import GemmConfig, seed_config
from minfer.cuda.token import LAST_STEP, TOKEN_STEPS
from minfer.engine.errors import EngineError, InputError

MMQ_ROUTES = ("mmq", "mmq_raw", "mmq_raw_wide", "mmq_fast")
MMQ_CHAINS = (*MMQ_ROUTES, "mmq_raw_kd4", "mmq_raw_wide_kd4")
HOPPER_ROUTES = ("f16-wgmma", "w4a16", "w4a8")
ROUTES = ("auto", "f16", *HOPPER_ROUTES, *MMQ_ROUTES)
LARGE_TILE = GemmConfig(128, 128, 64, 3, layout="swizzled")
WIDE_TILE = GemmConfig(128, 256, 64, 3, layout="swizzled")
WIDE_ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_103a")  # 144 KiB of shared memory for one block
FULL_WAVES = 0.8
"""The wide tile runs one block a multiprocessor: it pays where its last wave leaves few of them idle."""
SMALL_TILE = GemmConfig(64, 64, 64, 4, layout="swizzled")
SMALL_TOKENS = 64  # up to so many tokens the small tile wastes less
CONVERTS = ("fused", "vector", "scalar")
_SWITCHES = ("MINFER_GEMM_TM", "MINFER_GEMM_K64", "MINFER_GEMM_AF32")
_MMQ_SWITCHES = {"MINFER_MMQ_RAW": "mmq_raw", "MINFER_MMQ": "mmq"}  # the first that is set counts


@dataclass(frozen=True)
class Route:
    """The kernels of a prefill, and of a token.

    Attributes:
        name: as printed and recorded.
        wgmma: products of more than SMALL_TOKENS tokens take Hopper's GEMM.
        gemm: the mma.sync config of all other products.
        wide: the config where its tiles fill whole waves, None: `gemm` too.
        small: the config for up to SMALL_TOKENS tokens, None: `gemm` too.
        attention: a step of `minfer.cuda.attention.seed_steps`.
        hopper_attention: Hopper's own attention instead, where the GEMM behind it reads f16.
        convert: how activations become f16: "fused" into the kernel that makes them, or by a pass over f32,
            8 elements a thread ("vector") or one ("scalar").
        mmq: the chain of MMQ kernels that products take, a name in MMQ_CHAINS; None: f16 alone. The other
            fields are then of what no MMQ kernel takes.
        w4a16: products with Q4_K and Q6_K blocks read these; the other fields are of what is left.
        w4a8: the product with gate and up takes int8 activations, where both are Q4_K.
        fused: Hopper's GEMM adds to the residual stream and applies the gated activation itself, and where
            its tile can, adds the biases of q, k and v, rotates and writes into the KV cache; else later
            kernels do, from f16 results.
        token_kernel: a decoded token is one kernel, where the device and the model's formats allow: a step of
            `minfer.cuda.token.TOKEN_STEPS`. None, or elsewhere: one kernel an operation.
        token_changes: (name, value) of fields of that step that are to be others.
    """

    name: str
    wgmma: bool = False
    gemm: GemmConfig = LARGE_TILE
    wide: GemmConfig | None = None
    small: GemmConfig | None = SMALL_TILE
    attention: str = "FAP2, TKV=64"
    hopper_attention: bool = False
    convert: str = "fused"
    fused: bool = True
    token_kernel: str | None = LAST_STEP
    mmq: str | None = None
    w4a16: bool = False
    w4a8: bool = False
    token_changes: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.convert not in CONVERTS:
            raise InputError(f"convert={self.convert!r}: choose one of {', '.join(CONVERTS)}")
        if self.attention not in (steps := seed_steps(1, 1)):
            raise InputError(f"attention={self.attention!r}: choose one of {'; '.join(steps)}")
        if self.token_kernel is not None and self.token_kernel not in TOKEN_STEPS:
            raise InputError(f"token_kernel={self.token_kernel!r}: choose one of {', '.join(TOKEN_STEPS)}")
        if self.mmq is not None and self.mmq not in MMQ_CHAINS:
            raise InputError(f"mmq={self.mmq!r}: choose one of {', '.join(MMQ_CHAINS)}")
        if self.mmq is not None and (self.wgmma or self.activations != "f16"):
            raise InputError(
                "an MMQ route falls back to an mma.sync GEMM on f16 activations: leave wgmma "
                "off, convert fused and a_source f16"
            )
        if self.w4a16 and not (self.wgmma and self.activations == "f16"):
            raise InputError("w4a16 leaves other formats to the wgmma GEMM on f16 activations: set wgmma")
        if self.w4a8 and not (self.w4a16 and self.fused):
            raise InputError("w4a8 leaves other products to w4a16, and applies the activation: set both")
        if self.wgmma and self.keeps_f32:
            raise InputError("the wgmma GEMM reads f16: take an mma.sync route for f32 activations")
        if self.wgmma and self.small is None:
            raise InputError(
                "the wgmma GEMM writes f16, the last token's queries are f32: give a small config"
            )

    @property
    def token_fields(self) -> dict[str, Any]:
        """Fields of `minfer.cuda.token.TokenConfig` of the step, where there is one."""
        return {} if self.token_kernel is None else TOKEN_STEPS[self.token_kernel] | dict(self.token_changes)

    @property
    def keeps_f32(self) -> bool:
        """Whether the GEMM itself reads f32 activations."""
        return self.gemm.a_source == "f32_mirror"

    @property
    def reads_blocks(self) -> bool:
        """Whether kernels multiply the blocks themselves, so that these have no resident f16 copy."""
        return self.mmq is not None or self.w4a16

    @property
    def activations(self) -> str:
        """What the kernels before a GEMM write: "f16" or "f32"."""
        return "f16" if self.convert == "fused" and not self.keeps_f32 else "f32"

    def settings(self) -> dict[str, str]:
        """Its choices, as records keep them."""
        gemm = str(self.gemm)
        if self.wgmma:
            gemm = "wgmma, tile by shape" + (", fused sums, swiglu and RoPE" if self.fused else "")
        gemm += f" or {self.wide}" if self.wide is not None and not self.wgmma else ""
        if self.w4a16:
            gemm = f"w4a16, tile by shape{', fused swiglu' if self.fused else ''} -> {gemm}"
        if self.w4a8:
            gemm = f"w4a8 for gate and up -> {gemm}"
        if self.mmq is not None:
            gemm = " -> ".join([*self.chain(), gemm])
        attention = "wgmma, no running maximum" if self.hopper_attention else self.attention
        convert = "within the GEMM" if self.keeps_f32 else self.convert
        return {"route": self.name, "gemm": gemm, "attention": attention, "convert": convert}

    def chain(self) -> tuple[str, ...]:
        """The MMQ kernels of the route, the best first."""
        from minfer.engine.cuda.mmq import CHAINS

        return tuple(f"MMQ {step}" for step in CHAINS[self.mmq]) if self.mmq is not None else ()

    def config(self, tokens: int, outputs: int, sms: int) -> GemmConfig | None:
        """The mma.sync config for a product of so many tokens and outputs, None for Hopper's GEMM."""
        if tokens <= SMALL_TOKENS and self.small is not None:
            return self.small
        if self.wgmma:
            return None
        return self.mma_config(tokens, outputs, sms)

    def mma_config(self, tokens: int, outputs: int, sms: int) -> GemmConfig:
        """The config of a product of many tokens, where it must be mma.sync."""
        if self.wide is not None:
            rows, columns, _ = self.wide.grid(tokens, outputs)
            if rows * columns >= FULL_WAVES * sms * -(-rows * columns // sms):
                return self.wide
        return self.gemm

    def block_config(self, tokens: int) -> GemmConfig:
        """The mma.sync config of a product on weights that it dequantizes itself: no wide tile, whose
        registers would not hold a k-tile of blocks too."""
        return self.small if tokens <= SMALL_TOKENS and self.small is not None else self.gemm


def check_route(name: str) -> None:
    """Raise InputError for an unknown name."""
    if name not in ROUTES:
        raise InputError(f"route {name!r} is unknown: choose one of {', '.join(ROUTES)}")


def choose_route(name: str, arch: str, environment: Mapping[str, str]) -> Route:
    """The route of that name on an architecture ("sm_90a"), with the switches of `environment` applied.

    Raises InputError for an unknown name or a switch that makes no sense here, EngineError for a route that
    the architecture cannot run, ConfigRefused for a switch's value or a switched GEMM that cannot be.
    """
    check_route(name)
    name = _switched_to_mmq(name, environment)
    switched = {key: environment[key] for key in _SWITCHES if environment.get(key, "") not in ("", "0")}
    if switched and name not in ("auto", "f16"):
        raise InputError(f"{', '.join(switched)} select mma.sync kernels: unset them, or take the route f16")
    if switched:
        switches = " ".join(f"{key.removeprefix('MINFER_GEMM_')}={value}" for key, value in switched.items())
        return Route(f"f16 {switches}", gemm=seed_config(switched), small=None)
    hopper = arch == "sm_90a"
    if name in HOPPER_ROUTES and not hopper:
        raise EngineError(f"route {name} needs a GPU of sm_90 (H100, H200), this one is {arch}: take f16")
    wide = WIDE_TILE if arch in WIDE_ARCHITECTURES else None
    if name in MMQ_ROUTES:
        return Route(name, wide=wide, mmq=name, hopper_attention=hopper and name == "mmq_fast")
    if name == "f16" or not hopper:
        return Route("f16", wide=wide)
    if name in ("w4a16", "w4a8"):
        return Route(name, wgmma=True, wide=wide, hopper_attention=True, w4a16=True, w4a8=name == "w4a8")
    return Route("f16-wgmma", wgmma=True, wide=wide, hopper_attention=True)


def _switched_to_mmq(name: str, environment: Mapping[str, str]) -> str:
    """The route's name, after the seeds' switches to MMQ."""
    on = [key for key in _MMQ_SWITCHES if environment.get(key, "") not in ("", "0")]
    for key in on:
        if environment[key] != "1":
            raise InputError(f"{key}={environment[key]}: use 1, or 0 for off")
    if not on or name == _MMQ_SWITCHES[on[0]]:
        return name
    if name != "auto":
        raise InputError(f"{on[0]} selects the route {_MMQ_SWITCHES[on[0]]}: unset it, or leave out {name}")
    return _MMQ_SWITCHES[on[0]]
