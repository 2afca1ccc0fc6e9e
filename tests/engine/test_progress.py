"""The bars while a model is opened."""

import io

from minfer.engine import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_step_has_a_bar(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", stderr)
    update = progress.progress_bar()
    for done in range(1, 4):
        update("compiling", done, 3)
    update("loading", 500_000, 1_000_000)
    update("loading", 1_000_000, 1_000_000)
    shown = stderr.getvalue()
    assert "compiling:   0%" in shown and "0/3 [00:00<?, ?kernel/s]" in shown
    assert "loading:   0%" in shown and "0.00/1.00M [00:00<?, ?B/s]" in shown
    assert shown.endswith("\r") and not shown.split("\r")[-2].strip()  # nothing stays


def test_no_bar_where_nobody_looks(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    assert progress.progress_bar() is None
