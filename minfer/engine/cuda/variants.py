"""Variants: the route f16 with one choice changed, by name, as the campaign's seeds compared them.

f16                 the route as it is: what every other one is compared with
tm64, tm128, ...    the seeds' GEMM tiles; ks64: k-steps of 64 instead of 32; af32: f32 activations that
                    the GEMM converts
128x128, 128x256    one large tile for all products, where f16 chooses by the product
fa-...              the seeds' attention kernels (`minfer.cuda.attention.seed_steps`)
convert-...         f32 activations, and a pass that makes them f16 before each product
weights-...         the weights in another form (`minfer.engine.cuda.plan`)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from minfer.cuda.attention import seed_steps
from minfer.engine.cuda.routes import LARGE_TILE, WIDE_ARCHITECTURES, WIDE_TILE, Route, choose_route
from minfer.engine.errors import InputError

BASE = "f16"
EVERY = "all"
SEED_TILES = {
    "tm64": {"TM": "64"},
    "tm64-ks64": {"TM": "64", "K64": "1"},
    "tm128": {"TM": "128"},
    "tm128-ks64": {"TM": "128", "K64": "1"},
    "tm128-af32": {"TM": "128", "AF32": "1"},
    "tm256": {"TM": "256"},
    "tm256-ks64": {"TM": "256", "K64": "1"},
}
"""Names of the seeds' GEMMs -> their switches, without MINFER_GEMM_."""


@dataclass(frozen=True)
class Variant:
    """One way to prefill.

    Attributes:
        changes: in what it differs from f16: "GEMM", "attention", "convert", "weights"; "": it is f16.
        weights: as `minfer.engine.cuda.backend.CudaBackend` takes it.
    """

    name: str
    changes: str
    route: Route
    weights: str = "auto"


def with_attention(step: str, arch: str) -> Route:
    """The route f16 with an attention of `minfer.cuda.attention.seed_steps`."""
    return replace(choose_route(BASE, arch, {}), name=f"f16, attention {step}", attention=step)


def with_convert(how: str, arch: str) -> Route:
    """The route f16 with f32 activations and passes that convert them, "scalar" or "vector"."""
    return replace(choose_route(BASE, arch, {}), name=f"f16, {how} convert", convert=how)


def variants(arch: str) -> dict[str, Variant]:
    """Every variant by name on an architecture ("sm_90a"), f16 first."""
    base = choose_route(BASE, arch, {})
    found = [Variant(BASE, "", base)]
    for name, switches in SEED_TILES.items():
        environment = {f"MINFER_GEMM_{key}": value for key, value in switches.items()}
        found.append(Variant(name, "GEMM", choose_route(BASE, arch, environment)))
    tiles = {"128x128": LARGE_TILE} | ({"128x256": WIDE_TILE} if arch in WIDE_ARCHITECTURES else {})
    for name, tile in tiles.items():
        found.append(Variant(name, "GEMM", replace(base, name=f"f16, {name} tiles", gemm=tile, wide=None)))
    for step in seed_steps(1, 1):
        if step != base.attention:
            found.append(Variant(f"fa-{_slug(step)}", "attention", with_attention(step, arch)))
    for how in ("scalar", "vector"):
        found.append(Variant(f"convert-{how}", "convert", with_convert(how, arch)))
    for way in ("scratch", "blocks"):
        found.append(Variant(f"weights-{way}", "weights", base, way))
    return {variant.name: variant for variant in found}


def choose(names: Iterable[str], arch: str) -> list[Variant]:
    """The variants of these names, each once, and f16 before them; "all": every one.

    Raises:
        InputError: a name that there is not.
    """
    known, wanted = variants(arch), list(names)
    for name in wanted:
        if name not in known and name != EVERY:
            raise InputError(f"variant {name!r} is unknown: choose among {', '.join(known)}, or {EVERY}")
    if EVERY in wanted:
        return list(known.values())
    return [known[name] for name in dict.fromkeys([BASE, *wanted])]


def _slug(step: str) -> str:
    """ "FAP2, TKV=64" as "fap2-tkv64"."""
    return step.lower().replace(", ", "-").replace(" ", "-").replace("=", "")
