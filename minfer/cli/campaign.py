"""`minfer decompose` and `minfer report`: where a pass's time goes, and the campaign's tables."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """What a report is written as."""

    markdown = "markdown"
    html = "html"
