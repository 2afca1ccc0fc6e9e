"""Why a verdict differs from the seed's, by what the run itself measured. An explanation that its figures do
not bear out is "": not determined."""

from __future__ import annotations

from minfer.campaign.probe_record import ProbeRun, Side


def small_share(run: ProbeRun) -> str:
    """The kernels changed, but have so little of this prefill that the change of the whole misses the bar or
    stays inside the noise. Borne out if the kernels' own milliseconds say so too."""
    if run.gain is None or not run.kernels:
        return ""
    a, b = run.kernel_ms()
    prefill = run.wall[0].ms[0]
    foretold = prefill / (prefill - a + b) - 1
    limit = max(run.gain.noise, run.bar)
    if not (run.verdict in ("null", "REVERTED") and abs(foretold) <= limit and run.gain.low < run.bar):
        return ""
    inside = "the noise" if abs(foretold) <= run.gain.noise else f"the bar of {run.bar:+.0%}"
    return (
        f"The kernels go from {a:.2f} to {b:.2f} ms ({a / b - 1:+.0%}), but that is {foretold:+.1%} of a "
        f"prefill of {prefill:.0f} ms here: inside {inside}."
    )


def same_blocks(run: ProbeRun) -> str:
    """The variant costs no resident blocks here, as it did on the seed's GPU. Borne out if it gains, and the
    driver's blocks an SM are at most one fewer, and still several."""
    before, after = blocks_sm(run.baseline), blocks_sm(run.variant)
    if not (run.kernels and run.verdict == "LANDED" and min(after) > 1 and min(after) >= min(before) - 1):
        return ""
    return (
        f"By the driver {_range(before)} blocks an SM before and {_range(after)} after: several stay, where "
        f"the seed's GPU kept one. {_gain(run)}"
    )


def fits_here(run: ProbeRun) -> str:
    """The seed's GPU could not launch the variant, this one can. Borne out if its kernels are resident."""
    after = blocks_sm(run.variant)
    shared = [facts["shared_bytes"] for facts in run.variant.facts.values()]
    if not (run.kernels and after and min(after) >= 1):
        return ""
    return (
        f"It ran: {max(shared):,} bytes of shared memory a block are allowed here, {_range(after)} block(s) "
        f"an SM. {_gain(run)}"
    )


def blocks_sm(side: Side) -> list[int]:
    """Resident blocks an SM of a side's kernels, by the driver."""
    return [facts["blocks_sm"] for facts in side.facts.values()]


def _gain(run: ProbeRun) -> str:
    a, b = run.kernel_ms()
    whole = "" if run.gain is None else f", the whole prefill by {run.gain.value:+.1%}"
    return f"The kernels change by {a / b - 1:+.1%}{whole}."


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
