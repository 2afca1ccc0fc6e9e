"""What went wrong, as a notebook shows it: a sentence; for what nobody foresaw a folded traceback too."""

from __future__ import annotations

import traceback
from html import escape

from minfer.cuda.kernel import CompileError, LaunchRefused, NoDevice, ToolchainError
from minfer.cuda.runtime.driver import DriverError
from minfer.engine.errors import EngineError

EXPECTED = (
    ValueError,  # refused configs, model files and inputs are ValueErrors
    KeyError,
    ImportError,
    OSError,
    MemoryError,
    CompileError,
    DriverError,
    LaunchRefused,
    NoDevice,
    ToolchainError,
    EngineError,
)
"""Errors whose message is meant for a reader: no traceback is shown."""


def sentence(error: BaseException) -> str:
    """An error on one line: its message, and for one that nobody foresaw its type before it."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = " ".join(text.split())
    if isinstance(error, EXPECTED) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_html(error: BaseException) -> str:
    """An error as a panel: the sentence, and for one that nobody foresaw its traceback, folded."""
    head = escape(sentence(error))
    if isinstance(error, EXPECTED):
        return notice(head)
    lines = escape("".join(traceback.format_exception(error)))
    return notice(f"{head}<details><summary>traceback</summary><pre>{lines}</pre></details>")


def notice(html: str, colour: str = "#D55E00") -> str:
    """A sentence in a frame that is seen."""
    return (
        f'<div style="border-left:4px solid {colour};padding:.5em .9em;background:{colour}12;'
        f'line-height:1.45">{html}</div>'
    )
