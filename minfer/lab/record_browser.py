"""Every probe: the seed's figures against ours, filtered by verdict; one run in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from matplotlib.ticker import MaxNLocator

from minfer.campaign.probe import Probe
from minfer.campaign.probe_record import Comparison, ProbeRun
from minfer.campaign.statistics import VERDICTS, keep
from minfer.campaign.table import bound_words, newest_runs, probe_rows
from minfer.lab import style
from minfer.lab.explorer import Explorer, dropdown
from minfer.lab.picture import Picture
from minfer.lab.table import Table

ALL, DIFFERS, MISSING = "all", "differs from the seed", "not run"
FILTERS = (ALL, DIFFERS, *VERDICTS, MISSING)
COLOURS = {"LANDED": style.GREEN, "REVERTED": style.RED, "null": style.QUIET, "MEAS-ONLY": style.BLUE}


@dataclass(frozen=True)
class Browsed:
    """What a filter leaves, and the probe in view.

    Attributes:
        rows: of the probes that the filter leaves. probe: the chosen one. run: its newest run, None: none.
    """

    rows: list[dict]
    probe: Probe
    run: ProbeRun | None


def verdict_rows(
    probes: Sequence[Probe], runs: Sequence[ProbeRun], device: str, shown: str = ALL
) -> list[dict]:
    """A row a probe: the seed's verdict, ours, gain of the wall clock and of the kernels, both figures.

    shown: one of `FILTERS`: a verdict of ours, those that differ from the seed's, or those without a run.

    Raises:
        ValueError: no such filter.
    """
    if shown not in FILTERS:
        raise ValueError(f"no filter {shown!r}: there are {', '.join(FILTERS)}")
    found = []
    for row in probe_rows(probes, runs):
        run = row["runs"].get(device)
        verdict = MISSING if run is None else run["verdict"]
        differs = run is not None and row["seed verdict"] not in ("", verdict)
        if shown in (ALL, verdict) or (shown == DIFFERS and differs):
            found.append(
                {
                    "probe": row["probe"],
                    "seed": row["seed verdict"] or "-",
                    "ours": verdict,
                    "gain": None if run is None else run["gain"],
                    "kernels": None if run is None else run["kernels"],
                    "the seed's figures": row["seed figures"],
                    "our figures": "" if run is None else run["figures"],
                }
            )
    return found


def reason_rows(probes: Sequence[Probe], runs: Sequence[ProbeRun], device: str) -> list[dict]:
    """Probes whose newest verdict is not the seed's, and the reason that the run bears out."""
    return [
        {key: row[key] for key in ("probe", "seed", "ours")}
        | {"why": newest_runs(row["probe"], runs)[device].reason or "not determined"}
        for row in verdict_rows(probes, runs, device, DIFFERS)
    ]


def browse(probes: Sequence[Probe], runs: Sequence[ProbeRun], device: str, shown: str, name: str) -> Browsed:
    """The table under a filter, and one probe's newest run.

    Raises:
        KeyError: no such probe. ValueError: no such filter.
    """
    by_name = {probe.name: probe for probe in probes}
    if name not in by_name:
        raise KeyError(f"no probe {name!r}: there are {', '.join(by_name)}")
    run = newest_runs(name, runs).get(device)
    return Browsed(verdict_rows(probes, runs, device, shown), by_name[name], run)


def draw_verdicts(probes: Sequence[Probe], runs: Sequence[ProbeRun], device: str, note: str = "") -> Picture:
    """The wall clock's gain of every probe that was run, with its interval; the bar and nothing as lines."""
    found = []
    for probe in probes:
        run = newest_runs(probe.name, runs).get(device)
        if run is not None and run.gain is not None:
            g = run.gain
            seed = "" if probe.seed is None else probe.seed.verdict
            found.append(
                {
                    "probe": probe.name,
                    "gain": g.value,
                    "low": g.low,
                    "high": g.high,
                    "ours": run.verdict,
                    "seed": seed,
                }
            )
    fig, (ax,) = style.figure(9.6, 1.3 + 0.3 * max(len(found), 1))
    for place, row in enumerate(reversed(found)):
        colour = COLOURS[row["ours"]]
        ax.barh(place, row["gain"], height=0.62, color=style.tint(colour, 0.25))
        ax.plot([row["low"], row["high"]], [place, place], color=style.INK, linewidth=1.4)
        text = f"{row['gain']:+.1%} {row['ours']}" + (
            "" if row["seed"] == row["ours"] else f" (seed: {row['seed']})"
        )
        style.beside(ax, max(row["gain"], row["high"], 0.0), place, text)
    ax.axvline(0, color=style.QUIET, linewidth=0.9)
    ax.axvline(0.03, color=style.RED, linewidth=1.1, linestyle=(0, (4, 3)))
    ax.text(0.03, len(found) - 0.35, " the bar, +3 %", color=style.RED, fontsize=8.5)
    ax.set_yticks(range(len(found)), [row["probe"] for row in reversed(found)], color=style.INK)
    low = min((min(row["gain"], row["low"]) for row in found), default=0.0)
    high = max((max(row["gain"], row["high"]) for row in found), default=0.1)
    ax.set_xlim(min(low - 0.05 * (high - low), -0.02), high + 0.45 * (high - min(low, 0)))
    ax.set_ylim(-0.6, len(found) + 0.3)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", visible=False)
    style.label(ax, "gain of the whole prefill's tokens a second (%)")
    style.title(ax, "Every probe of the campaign", note)
    return Picture(fig, f"Gain of the wall clock of {len(found)} probes, with verdicts", found)


def draw_run(browsed: Browsed) -> Picture:
    """The rounds of one run: every sample of baseline, variant and the second baseline."""
    run = browsed.run
    comparisons: list[Comparison] = [] if run is None else [*run.wall, *run.kernels]
    count = max(1, min(len(comparisons), 5))
    fig, axes = style.figure(9.6, 3.2, columns=count)
    found = []
    for ax, comparison in zip(axes, comparisons[:count], strict=False):
        kept = keep(comparison.baseline, comparison.variant, comparison.again)
        for label, side, colour in (
            (run.baseline.label, comparison.baseline, style.BLUE),
            (run.variant.label, comparison.variant, style.ORANGE),
            (f"{run.baseline.label} again", comparison.again, style.SKY),
        ):
            ring = side is comparison.again  # which lies on the baseline's points
            look = {"markersize": 8, "markerfacecolor": "none"} if ring else {"markersize": 4.5}
            ax.plot(side, "o", color=colour, label=label, **look)
            dropped = [i for i, good in enumerate(kept) if not good]
            ax.plot(dropped, [side[i] for i in dropped], "x", color=style.RED, markersize=5)
            found += [
                {"case": comparison.case, "side": label, "round": i, "ms": ms, "kept": bool(kept[i])}
                for i, ms in enumerate(side)
            ]
        sides = (comparison.baseline, comparison.variant, comparison.again)
        low, high = min(map(min, sides)), max(map(max, sides))
        ax.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        style.label(ax, "round", "time (ms)")
        case = comparison.case.split(",")[0]
        style.title(ax, f"{comparison.ratio - 1:+.1%}", case)
    if comparisons:
        style.legend_below(fig, axes[0])
    else:
        style.bare(axes[0]).text(
            0.5, 0.5, "nothing was timed", ha="center", color=style.QUIET, transform=axes[0].transAxes
        )
        axes[0].set_xticks([])
        axes[0].set_yticks([])
    return Picture(fig, f"Interleaved samples of {browsed.probe.name}", found)


def browsed_html(browsed: Browsed) -> str:
    """The chosen probe in full, and the filtered table, folded."""
    if not browsed.rows:
        return "<p>No probe.</p>"
    formats = {"gain": "+.1%", "kernels": "+.1%"}
    table = Table(browsed.rows, formats=formats)._repr_html_()
    folded = f"The {len(browsed.rows)} under this filter: the seed's figures against ours"
    return f"{run_html(browsed.probe, browsed.run)}<details><summary>{folded}</summary>{table}</details>"


def run_html(probe: Probe, run: ProbeRun | None) -> str:
    """One probe: what was asked, what the seed found, what we found."""
    facts = {
        "question": f"<b>{escape(probe.title)}</b>",
        "hypothesis": escape(probe.hypothesis),
        "predicted": escape(str(probe.predicted())),
    }
    if probe.seed is not None:
        seed = probe.seed
        facts["seed"] = f"<b>{seed.verdict}</b> ({escape(seed.origin)}). {escape(seed.summary)}"
        facts["its mechanism"] = escape(seed.mechanism)
    facts |= {"ours": "not run on this device"} if run is None else _run_facts(run)
    rows = "".join(
        f'<tr style="vertical-align:top"><td style="padding:.15em 1em .15em 0;color:{style.QUIET};'
        f'white-space:nowrap">{name}</td><td style="text-align:left">{text}</td></tr>'
        for name, text in facts.items()
        if text
    )
    return f'<table style="line-height:1.45">{rows}</table>'


def _run_facts(run: ProbeRun) -> dict[str, str]:
    found = [run.summary] if run.summary else []
    if run.gain is not None:
        g = run.gain
        found.append(
            f"wall clock {g.value:+.2%} [{g.low:+.2%}, {g.high:+.2%}], noise {g.noise:.2%}, {g.rounds} rounds"
        )
    if run.most is not None:
        found.append(bound_words(run))
    gates = (f"{g.name} {'passed' if g.passed else '<b>FAILED</b>'}: {escape(g.found)}" for g in run.gates)
    facts = {
        "ours": f"<b>{run.verdict}</b> ({escape(run.origin)}). {escape('; '.join(found))}",
        "gates": "<br>".join(gates),
        "GPU": escape(str(run.telemetry)),
    }
    same = run.reason == run.mechanism  # told once
    facts |= {"why" if same else "mechanism": escape(run.mechanism), "retry": escape(run.retry)}
    return facts if same else facts | {"reason": escape(run.reason)}


class RecordBrowser(Explorer):
    """Choose a filter, which leaves some probes to choose from; one in full.

    Args:
        device: whose runs are shown.
    """

    def __init__(self, probes: Sequence[Probe], runs: Sequence[ProbeRun], device: str = "h200") -> None:
        self.probes, self.runs, self.device = probes, runs, device
        first = next((probe.name for probe in probes if newest_runs(probe.name, runs)), probes[0].name)
        controls = {
            "shown": dropdown({name: name for name in FILTERS}, ALL, "show"),
            "name": dropdown(self._names(ALL), first, "probe"),
        }
        super().__init__("record browser", controls, self._browse, draw_run, browsed_html)
        left = self.box.children[0]
        left.layout.flex = self.panel.layout.flex = "1 1 100%"
        self.controls["name"].layout.width = "480px"

    def _names(self, shown: str) -> dict[str, str]:
        """What the probe's control offers under a filter: name with both verdicts -> name."""
        rows = verdict_rows(self.probes, self.runs, self.device, shown)
        return {f"{row['probe']}: {row['seed']} → {row['ours']}": row["probe"] for row in rows}

    def _browse(self, shown: str, name: str | None) -> Browsed:
        return browse(self.probes, self.runs, self.device, shown, name or self.probes[0].name)

    def _changed(self, change) -> None:
        if change["owner"] is self.controls["shown"]:
            names, before = self._names(change["new"]), self.controls["name"].value
            self.controls["name"].options = list(names.items())
            self.controls["name"].value = (
                before if before in names.values() else next(iter(names.values()), None)
            )
        super()._changed(change)
