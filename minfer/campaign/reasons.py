"""Why a verdict differs from the seed's, by what was measured: each takes a run and the records beside it.

An explanation that the figures do not bear out is "": not determined.
"""

from __future__ import annotations

from collections.abc import Sequence

from minfer.arithmetic.devices import DEVICES, DeviceSpec
from minfer.arithmetic.occupancy import blocks_per_sm
from minfer.campaign.observe import PRODUCTS
from minfer.campaign.probe_record import ProbeRun, Side
from minfer.campaign.record import Record
from minfer.campaign.wall_record import Wall, newest_walls
from minfer.cuda.mmq.config import ALIGNED_TYPES, BLOCK_BYTES

SEED_DEVICE = DEVICES["gb10"]


def small_share(run: ProbeRun, records: Sequence[Record] = ()) -> str:
    """The kernels have so little of this prefill that it misses the bar, whatever they gain. Borne out if
    their own milliseconds say so too."""
    if run.gain is None or run.verdict not in ("null", "REVERTED") or run.gain.low >= run.bar:
        return ""
    a, b = run.kernel_ms()
    prefill = run.wall[0].ms[0]
    foretold = prefill / (prefill - a + b) - 1
    noise = abs(foretold) <= run.gain.noise
    if not (noise or 0 <= foretold <= run.bar):
        return ""
    why = (
        "inside the noise"
        if noise
        else f"the low end of what was measured, {run.gain.low:+.2%}, misses the bar of {run.bar:+.0%}"
    )
    return (
        f"The kernels go from {a:.2f} to {b:.2f} ms ({a / b - 1:+.0%}), {foretold:+.2%} of a prefill of "
        f"{prefill:.0f} ms here: {why}."
    )


def only_bounded(run: ProbeRun, records: Sequence[Record] = ()) -> str:
    """No whole prefill was timed, since no route of the engine takes the variant."""
    if run.bound is None or run.verdict != "MEAS-ONLY":
        return ""
    a, b = run.kernel_ms()
    return (
        f"No route runs these kernels ({a / b - 1:+.0%}): {run.bound.bucket} has {run.bound.share:.1%} of "
        "the wall here, which bounds the gain."
    )


def same_blocks(run: ProbeRun, records: Sequence[Record] = ()) -> str:
    """What the variant costs in resident blocks on the seed's GPU, it does not cost here. Borne out by the
    driver's blocks an SM, and by the seed's GPU's limits for the same registers and shared memory."""
    before, after = (resident(side) for side in (run.baseline, run.variant))
    there = [resident(side, SEED_DEVICE) for side in (run.baseline, run.variant)]
    if not (run.kernels and run.verdict in ("LANDED", "null") and min(after) >= min(before)):
        return ""
    if min(there[1]) >= min(there[0]):
        return ""
    return (
        f"Blocks an SM here, by the driver: {min(before)} before, {min(after)} after; the same "
        f"registers and shared memory on a {SEED_DEVICE.key.upper()}: {min(there[0])} and "
        f"{min(there[1])}."
    )


def fits_here(run: ProbeRun, records: Sequence[Record] = ()) -> str:
    """The seed's GPU cannot launch the variant, this one can. Borne out by both GPUs' limits."""
    shared = [facts["shared_bytes"] for facts in run.variant.facts.values()]
    if not run.kernels or min(resident(run.variant)) < 1 or max(resident(run.variant, SEED_DEVICE)) > 0:
        return ""
    told = (
        f"It runs here: {_range(resident(run.variant))} block(s) an SM, by the driver, of {max(shared):,} "
        f"bytes of shared memory; a {SEED_DEVICE.key.upper()} allows none."
    )
    formats = formats_of(run, records)
    return told if formats is None else f"{told} {_formats_told(*formats)}"


def by_format(run: ProbeRun, records: Sequence[Record]) -> str:
    """The compared kernels read Q4_K, the model has Q6_K besides, and the two formats go different ways.
    Borne out by the walls of both routes."""
    formats = formats_of(run, records)
    if formats is None or run.gain is None:
        return ""
    a, b = formats
    gains = sum(a.values()) > sum(b.values())
    agree = {name for name in a if (a[name] > b[name]) == gains}
    if gains != (run.gain.value > 0) or not agree or len(agree) == len(a):
        return ""
    told = _formats_told(a, b)
    for name in agree - set(ALIGNED_TYPES):
        told += f" {name}'s blocks of {BLOCK_BYTES[name]} bytes leave raw words unaligned."
    return told


def other_format(run: ProbeRun, records: Sequence[Record]) -> str:
    """The compared kernels read Q4_K, and what the prefill gains is mostly Q6_K's. Borne out if they save
    less than half of it, and the baseline's wall has so much Q6_K that it can be the rest."""
    wall = newest_wall(records, run.device, run.settings["routes"][0]["route"]) if run.wall else None
    other = 0.0 if wall is None else products_by_format(wall).get("Q6_K", 0.0)
    if run.verdict != "LANDED" or not other:
        return ""
    (a, b), (before, after) = run.kernel_ms(), run.wall[0].ms
    saved, own = before - after, a - b
    if not (0 <= own < saved / 2 and saved - own < other):
        return ""
    return (
        f"The compared kernels, as if all matrices were Q4_K, save {own:.1f} of the {saved:.1f} ms that the "
        f"prefill gains; the rest is of the Q6_K products, which have {other:.1f} ms of the baseline's wall."
    )


def formats_of(run: ProbeRun, records: Sequence[Record]) -> tuple[dict[str, float], dict[str, float]] | None:
    """Milliseconds of the products by format, from the newest walls of the run's routes; None: not both have
    one, or they do not have the same formats."""
    names = [route["route"] for route in run.settings.get("routes", [])]
    walls = [wall for name in names if (wall := newest_wall(records, run.device, name)) is not None]
    if len(walls) != 2:
        return None
    a, b = (products_by_format(wall) for wall in walls)
    return (a, b) if a.keys() == b.keys() <= BLOCK_BYTES.keys() else None


def _formats_told(a: dict[str, float], b: dict[str, float]) -> str:
    told = ", ".join(f"{name} {a[name]:.1f} -> {b[name]:.1f}" for name in sorted(a))
    return f"Milliseconds of the products by format, from the walls of both routes: {told}."


def newest_wall(records: Sequence[Record], device: str, route: str) -> Wall | None:
    """The newest decomposition of a prefill on a device (its driver's name) and route, or None."""
    return next((wall for wall in newest_walls(records, device) if wall.route == route), None)


def products_by_format(wall: Wall) -> dict[str, float]:
    """Milliseconds of the layers' products by the format of their blocks."""
    found: dict[str, float] = {}
    for bucket in wall.buckets:
        if bucket.name in PRODUCTS:
            for kernel, ms in bucket.kernels.items():
                name = next((name for name in BLOCK_BYTES if name in kernel), "f16")
                found[name] = found.get(name, 0.0) + ms
    return found


def resident(side: Side, device: DeviceSpec | None = None) -> list[int]:
    """Blocks an SM of a side's kernels: by the driver, or what a device of the table would hold of them."""
    if device is None:
        return [facts["blocks_sm"] for facts in side.facts.values()]
    return [
        blocks_per_sm(device, facts["threads"], facts["registers"], facts["shared_bytes"]).blocks
        for facts in side.facts.values()
    ]


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
