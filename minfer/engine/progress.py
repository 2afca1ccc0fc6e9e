"""How far the opening of a model is, on a terminal."""

from __future__ import annotations

import sys

from tqdm import tqdm

from minfer.engine.backend import Progress

_UNITS = {"compiling": "kernel", "loading": "B"}


def progress_bar() -> Progress | None:
    """A bar on stderr for each step that `Progress` is told of; None where that is no terminal."""
    if not sys.stderr.isatty():
        return None
    bars: dict[str, tqdm] = {}

    def update(step: str, done: int, total: int) -> None:
        if step not in bars:
            unit = _UNITS[step]
            bars[step] = tqdm(
                desc=step, total=total, unit=unit, unit_scale=unit == "B", leave=False, file=sys.stderr
            )
        bar = bars[step]
        bar.update(done - bar.n)
        if done >= total:
            bars.pop(step).close()

    return update
