"""Online softmax, tile by tile on one query row and on toy tiles, as every attention kernel runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minfer.lab import style
from minfer.lab.picture import Picture


@dataclass(frozen=True)
class Step:
    """What one KV tile did to one query row.

    Attributes:
        tile: its number. scores: the row's scores in it, -inf where they are masked.
        largest: the running maximum behind it. factor: what everything before is multiplied by.
        part: the tile's own sum of exponentials. total: the running sum.
        output: the running, unnormalized sum of P V.
    """

    tile: int
    scores: np.ndarray
    largest: float
    factor: float
    part: float
    total: float
    output: np.ndarray


def toy_row(keys: int = 12, dims: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A query [dims], keys and values [keys, dims] whose scores rise late, so that the maximum moves."""
    random = np.random.default_rng(3)
    q = np.ones(dims)
    rise = np.array([0.5, 1.5, 1.0, 0.0, 2.5, 1.0, 0.5, 2.0, 1.0, 4.0, 0.5, 3.0])[:keys]
    k = rise[:, None] / np.sqrt(dims) + random.normal(0, 0.1, (keys, dims))
    return q, k, random.normal(size=(keys, dims)).round(1)


def online_softmax(q: np.ndarray, k: np.ndarray, v: np.ndarray, tkv: int, seen: int) -> list[Step]:
    """Attend with one query to the first `seen` keys, `tkv` at a time (FlashAttention-2, Dao 2023).

    Args:
        q: [dims]. k, v: [keys, dims]. tkv: keys a tile. seen: keys that the causal mask lets through.

    Raises:
        ValueError: no key is seen, or a tile is empty.
    """
    if not 1 <= seen <= len(k) or tkv < 1:
        raise ValueError(
            f"a query sees 1 to {len(k)} keys in tiles of 1 or more, not {seen} in tiles of {tkv}"
        )
    scale = 1 / np.sqrt(len(q))
    largest, total, output, steps = -np.inf, 0.0, np.zeros(v.shape[1]), []
    for first in range(0, seen, tkv):
        keys = np.arange(first, min(first + tkv, len(k)))
        scores = np.where(keys < seen, k[keys] @ q * scale, -np.inf)
        before, largest = largest, max(largest, scores.max())
        factor = float(np.exp(before - largest))
        weights = np.exp(scores - largest)
        total = total * factor + weights.sum()
        output = output * factor + weights @ v[keys]
        steps.append(Step(first // tkv, scores, largest, factor, weights.sum(), total, output))
    return steps


def result(steps: Sequence[Step]) -> np.ndarray:
    """The attention's output [dims]: the only division comes at the end."""
    return steps[-1].output / steps[-1].total


def step_rows(steps: Sequence[Step]) -> list[dict]:
    """The running values behind each tile."""
    return [
        {
            "tile": step.tile,
            "scores": " ".join("-" if np.isinf(s) else f"{s:.2f}" for s in step.scores),
            "maximum m": round(step.largest, 2),
            "rescale factor": round(step.factor, 3),
            "sum of the tile": round(step.part, 3),
            "running sum l": round(step.total, 3),
        }
        for step in steps
    ]


def draw_online_softmax(steps: Sequence[Step]) -> Picture:
    """Scores with the running maximum on the left; on the right what each tile holds of the running sum."""
    fig, (left, right) = style.figure(9.6, 3.8, columns=2, width_ratios=(1.25, 1))
    rows, first = [], 0
    for step in steps:
        colour = style.SEQUENCE[step.tile % len(style.SEQUENCE)]
        seen = [i for i, score in enumerate(step.scores) if np.isfinite(score)]
        left.bar([first + i for i in seen], step.scores[seen], width=0.8, color=style.tint(colour, 0.35))
        span = (first - 0.5, first + len(step.scores) - 0.5)
        left.plot(span, [step.largest] * 2, color=style.INK, linewidth=1.8)
        masked = [first + i for i in range(len(step.scores)) if i not in seen]
        for key in masked:
            left.text(
                key, 0.05, "masked", rotation=90, ha="center", va="bottom", fontsize=8, color=style.QUIET
            )
        rows += [
            {"tile": step.tile, "key": first + i, "score": float(step.scores[i]), "maximum": step.largest}
            for i in seen
        ]
        first += len(step.scores)
    style.label(left, "key", "score")
    left.set_xticks(range(first))
    left.grid(axis="x", visible=False)
    style.title(
        left, "Scores and their running maximum", "a colour a tile; the black line is the maximum behind it"
    )
    _draw_sums(right, steps)
    style.label(right, "tiles done", "running sum l")
    style.title(right, "What is summed so far", "every new maximum shrinks what came before")
    alt = f"Online softmax of one query over {len(steps)} tiles: scores, running maximum, running sum"
    return Picture(fig, alt, rows)


def _draw_sums(ax, steps: Sequence[Step]) -> None:
    shares: list[float] = []
    for step in steps:
        shares = [share * step.factor for share in shares] + [step.part]
        bottom = 0.0
        for tile, share in enumerate(shares):
            colour = style.tint(style.SEQUENCE[tile % len(style.SEQUENCE)], 0.35)
            ax.bar(step.tile + 1, share, bottom=bottom, width=0.62, color=colour)
            bottom += share
        text = f"x {step.factor:.2f}" if step.tile else ""
        ax.text(step.tile + 1, bottom * 1.02, text, ha="center", va="bottom", fontsize=9, color=style.INK)
    ax.set_xticks([step.tile + 1 for step in steps])
    ax.margins(y=0.15)
    ax.grid(axis="x", visible=False)


@dataclass(frozen=True)
class ToyAttention:
    """One simulated attention launch.

    Attributes:
        step: name of its config in `seed_steps`. nt, kv_end: queries, stored cache rows.
        error: the greatest difference from the float64 reference. bound: what a right kernel stays under.
        wavefronts: passes of all warps through the banks, copies left out; ideal: without conflicts.
        barriers: block barriers that a thread meets.
        findings: what the race checker objects to, a sentence each.
    """

    step: str
    nt: int
    kv_end: int
    error: float
    bound: float
    wavefronts: int
    ideal: int
    barriers: int
    findings: list[str]


def simulate_attention(step: str, nt: int = 20, kv_end: int | None = None) -> ToyAttention:
    """Run a step of the seeds at 2 heads of 64 dims on one kv head; NaN in the output and in every cache row
    past `kv_end` (default: nt).

    Raises:
        KeyError: no such step.
    """
    from minfer.cuda import reference, simulator
    from minfer.cuda.attention import attention_prefill, seed_steps
    from minfer.cuda.trace import Op, Trace, check, shared_lines

    heads, head_dim = 2, 64
    config = seed_steps(heads, 1, head_dim)[step]
    kv_end = nt if kv_end is None else kv_end
    random = np.random.default_rng(0)
    q = random.standard_normal((nt, heads, head_dim)).astype(np.float16)
    k, v = (np.full((kv_end + 8, head_dim), np.nan, np.float16) for _ in range(2))
    for cache in (k, v):
        cache[:kv_end] = random.standard_normal((kv_end, head_dim))
    out = np.full((nt, heads * head_dim), np.nan, np.float16)
    trace = Trace()
    scale = np.float32(head_dim**-0.5)
    arguments = (q.reshape(nt, -1), k, v, out, nt, kv_end - nt, kv_end, scale)
    simulator.launch(attention_prefill(config), config.grid(nt), *arguments, trace=trace)
    wanted = reference.attention(q, k[:kv_end, None], v[:kv_end, None], kv_end - nt).reshape(nt, -1)
    error = float(np.abs(out.astype(np.float64) - wanted).max())
    # P and the output are f16: half a unit in the last place of the largest value, for each of the two.
    bound = float(2 * np.spacing(np.float16(np.abs(v[:kv_end]).max())))
    lines = shared_lines(trace)
    return ToyAttention(
        step,
        nt,
        kv_end,
        error,
        bound,
        wavefronts=sum(line.wavefronts for line in lines),
        ideal=sum(line.ideal for line in lines),
        barriers=int(np.unique(trace.rows(Op.BARRIER_ARRIVE)["extra"]).size),
        findings=[str(finding) for finding in check(trace)],
    )


def toy_rows(runs: Sequence[ToyAttention]) -> list[dict]:
    """What the runs counted, and whether they are right."""
    return [
        {
            "step": run.step,
            "queries": run.nt,
            "cache rows": run.kv_end,
            "equal to the reference": run.error <= run.bound,
            "races": len(run.findings),
            "barriers": run.barriers,
            "wavefronts": run.wavefronts,
            "of them conflicts": run.wavefronts - run.ideal,
        }
        for run in runs
    ]
