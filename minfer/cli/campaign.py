"""`minfer decompose` and `minfer report`: where a pass's time goes, and the campaign's tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from minfer.cli.common import JsonOption, ModelOption, RouteOption, print_json


class Format(StrEnum):
    """What a report is written as."""

    markdown = "markdown"
    html = "html"
