"""What several commands share: their options, and how they read text and print JSON."""

from __future__ import annotations

import codecs
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Backend(StrEnum):
    """Where the model runs."""

    auto = "auto"
    host = "host"
    cuda = "cuda"


class Weights(StrEnum):
    """In which form a GPU's prefill has the weights."""

    auto = "auto"
    resident = "resident"
    scratch = "scratch"
    blocks = "blocks"


class KVType(StrEnum):
    """What the KV cache is kept in."""

    f16 = "f16"
    f32 = "f32"


ModelOption = Annotated[
    str, typer.Option("-m", "--model", metavar="MODEL", help="A GGUF file, or the name of a pulled model.")
]
BackendOption = Annotated[
    Backend, typer.Option("--backend", help="auto: the GPU where it can run the model, else the CPU.")
]
RouteOption = Annotated[
    str,
    typer.Option(
        "--route",
        help="Prefill kernels of the GPU: auto, f16 (mma.sync), f16-wgmma, w4a16 or w4a8 (Hopper), or int8 "
        "from the file's blocks: mmq, mmq_raw, mmq_raw_wide, mmq_fast.",
    ),
]
WeightsOption = Annotated[
    Weights,
    typer.Option(
        "--weights",
        help="Weights of a GPU's prefill: resident f16 copies, a scratch that each matrix is dequantized "
        "into, or blocks that the GEMM dequantizes; auto: the first that fits.",
    ),
]
KVTypeOption = Annotated[KVType, typer.Option("--kv-type", help="What the KV cache is kept in.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def print_json(value: Any) -> None:
    """Print a JSON document on stdout, in ASCII where that is no UTF-8."""
    ascii_only = codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"
    print(json.dumps(value, ensure_ascii=ascii_only, indent=1, allow_nan=False))


def text_or_file(text: str | None, file: str | None, what: str) -> str:
    """The text given on the command line or the content of a file ("-": standard input); one of the two."""
    if (text is None) == (file is None):
        raise typer.BadParameter(
            f"give either {what} or -f FILE" + (", not both" if text is not None else "")
        )
    return check_text(text, what) if text is not None else read_text(file)


def check_text(text: str, what: str) -> str:
    """Refuse an argument whose bytes are not UTF-8 (Python hands those on as lone surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{what} is not UTF-8: character {error.start}") from None
    return text


def read_text(file: str) -> str:
    """A text file's content, newlines as they are; "-" is standard input."""
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "standard input" if file == "-" else file
        raise typer.BadParameter(
            f"{name} is not UTF-8 text: byte 0x{raw[error.start]:02x} at offset {error.start}"
        ) from None
