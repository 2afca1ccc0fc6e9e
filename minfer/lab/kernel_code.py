"""A kernel in three languages: its Python source, PTX and SASS, joined line by line."""

from __future__ import annotations

import difflib
import linecache
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minfer.cuda.kernel import ToolchainError
from minfer.cuda.trace import Place

if TYPE_CHECKING:
    from minfer.cuda.runtime import CompiledKernel

CLASSES = {
    "tensor cores": ("HMMA", "IMMA", "HGMMA", "IGMMA"),
    "ldmatrix": ("LDSM",),
    "shared memory": ("LDS", "STS", "STSM", "ATOMS"),
    "asynchronous copies": ("LDGSTS", "LDGDEPBAR", "DEPBAR", "UTMALDG", "UTMASTG", "UBLKCP", "SYNCS"),
    "global memory": ("LDG", "STG", "ATOMG", "RED", "LD", "ST"),
    "local memory (spills)": ("LDL", "STL"),
    "barriers": ("BAR", "WARPSYNC", "WARPGROUP", "MEMBAR", "FENCE", "ERRBAR", "CCTL"),
    "float arithmetic": ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP", "MUFU", "HADD2", "HMUL2", "HFMA2"),
    "conversions": ("F2F", "F2FP", "I2F", "F2I", "I2FP", "PRMT"),
    "control flow": ("BRA", "EXIT", "BSSY", "BSYNC", "CALL", "RET", "BREAK", "NANOSLEEP", "BRX"),
}
"""Machine instructions by what they are for; all others are integers, addresses and moves."""
REST = "integers, addresses, moves"
_PTX_LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_PTX_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
_SASS_LOCATION = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_SASS_CODE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_OPCODE = re.compile(r"(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True)
class Line:
    """A line of PTX or SASS, with the line of the Python source that it comes from, if that is known."""

    text: str
    source: int | None

    @property
    def opcode(self) -> str:
        """Of SASS: the instruction without predicate and modifiers; empty for labels."""
        match = _OPCODE.match(self.text)
        return match[1] if match and not self.text.startswith(".") else ""


@dataclass(frozen=True)
class Listing:
    """A compiled kernel's code.

    Attributes:
        kernel, arch: what, for what. file: the source file, as `Place.file_name` says it. source: the kernel
        function's lines; first: the number of the first of them. ptx, sass: instructions and labels in order.
        missing: why there is no SASS, in a sentence, or None.
        registers: a thread's.
    """

    kernel: str
    arch: str
    file: str
    first: int
    source: tuple[str, ...]
    ptx: tuple[Line, ...]
    sass: tuple[Line, ...]
    registers: int
    missing: str | None = None

    @classmethod
    def from_json(cls, fields: dict) -> Listing:
        """What `dataclasses.asdict` and JSON made of a listing."""
        ptx, sass = ([Line(**line) for line in fields[name]] for name in ("ptx", "sass"))
        return cls(**{**fields, "source": tuple(fields["source"]), "ptx": tuple(ptx), "sass": tuple(sass)})

    def same_source(self, other: Listing) -> bool:
        """Whether both are of one function, so that a line means the same in both."""
        return (self.file, self.first, self.source) == (other.file, other.first, other.source)

    def source_lines(self) -> list[Line]:
        """The kernel function's lines."""
        return [Line(text, self.first + i) for i, text in enumerate(self.source)]

    def text_of(self, source: int) -> str:
        """A line of the source without its indent; empty if it is none of the function's."""
        inside = 0 <= source - self.first < len(self.source)
        return self.source[source - self.first].strip() if inside else ""

    def of(self, language: str, source: int) -> list[Line]:
        """The lines of "ptx" or "sass" that a line of the source became."""
        return [line for line in getattr(self, language) if line.source == source]

    def instructions(self) -> list[Line]:
        """The machine instructions, without labels, padding, and what is never executed (`@!PT`)."""
        return [
            line
            for line in self.sass
            if line.opcode and line.opcode != "NOP" and not line.text.startswith("@!PT ")
        ]

    def counts(self, source: int | None = None) -> dict[str, int]:
        """Machine instructions by class, in the order of `CLASSES`, the rest last; absent classes are 0.

        `source`: only those of this line of the source."""
        counts = Counter(
            instruction_class(line.opcode)
            for line in self.instructions()
            if source is None or line.source == source
        )
        return {name: counts[name] for name in (*CLASSES, REST)}

    def by_line(self) -> Counter[int | None]:
        """Machine instructions of every source line."""
        return Counter(line.source for line in self.instructions())


def instruction_class(opcode: str) -> str:
    """The class of a SASS opcode ("HMMA" without modifiers)."""
    return next((name for name, opcodes in CLASSES.items() if opcode in opcodes), REST)


def listing(compiled: CompiledKernel) -> Listing:
    """The three languages of a kernel that was compiled with `lineinfo`, joined.

    A missing nvdisasm is no error: see `Listing.missing`.
    """
    from minfer.cuda.runtime.resources import disassemble

    kernel = compiled.kernel
    code = kernel.function.__code__
    first = code.co_firstlineno
    last = max(line for _, _, line in code.co_lines() if line)
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    sass: list[Line] = []
    missing = None
    try:
        sass = parse_sass(disassemble(compiled.cubin, lines=True), code.co_filename)
    except ToolchainError as error:
        missing = str(error)
    return Listing(
        kernel=str(kernel),
        arch=compiled.arch,
        file=Place(code.co_filename, first, code.co_name).file_name,
        first=first,
        source=tuple(textwrap.dedent("".join(lines)).splitlines()),
        ptx=tuple(parse_ptx(compiled.ptx, code.co_filename)),
        sass=tuple(sass),
        registers=compiled.resources.registers,
        missing=missing,
    )


def parse_ptx(text: str, file: str) -> list[Line]:
    """The instructions and labels of the kernel's body; `file` is the Python file whose lines count."""
    files = dict(_PTX_FILE.findall(text))
    lines: list[Line] = []
    inside, current = False, None
    for raw in text.splitlines():
        if raw.startswith("{"):
            inside = True
        elif raw.startswith("}"):
            inside = False
        elif inside and (place := _PTX_LOCATION.match(raw)):
            known = _same_file(files.get(place[1], ""), file) and place[2] != "0"
            current = int(place[2]) if known else None
        elif inside and raw.strip() and not re.match(r"\s*(\.|//|\{|\})", raw):
            lines.append(Line(raw.strip().removesuffix(";").replace("\t", " "), current))
    return lines


def _same_file(compiled: str, here: str) -> bool:
    """Whether two paths end alike: a cached kernel may have been compiled in another copy of the project."""
    return compiled.split("/")[-3:] == here.split("/")[-3:]


def parse_sass(text: str, file: str) -> list[Line]:
    """The instructions and labels that `nvdisasm -c -g` printed."""
    lines: list[Line] = []
    current = None
    for raw in text.splitlines():
        if place := _SASS_LOCATION.match(raw):
            current = int(place[2]) if _same_file(place[1], file) else None
        elif code := _SASS_CODE.match(raw):
            lines.append(Line(" ".join(code[1].split()), current))
        elif re.match(r"\.L_\w+:", raw):
            lines.append(Line(raw.strip(), None))
    return lines


@dataclass(frozen=True)
class Change:
    """One line of a difference: `sign` is " ", "-" (only in the first) or "+" (only in the second)."""

    sign: str
    text: str


def difference(first: Listing, second: Listing, source: int | None = None) -> list[Change]:
    """The machine code of two listings compared by opcode and modifiers, of one source line if asked.

    Registers and addresses are left out of the comparison: they differ everywhere and say nothing.
    """

    def opcodes(code: Listing) -> list[str]:
        return [
            line.text.split(" ", 1)[0]
            if not line.text.startswith("@")
            else " ".join(line.text.split(" ")[:2])
            for line in code.instructions()
            if source is None or line.source == source
        ]

    a, b = opcodes(first), opcodes(second)
    changes: list[Change] = []
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            changes += [Change(" ", text) for text in a[i0:i1]]
        else:
            changes += [Change("-", text) for text in a[i0:i1]] + [Change("+", text) for text in b[j0:j1]]
    return changes


def class_rows(listings: Sequence[Listing], source: int | None = None) -> list[dict]:
    """Instructions by class, classes that no listing has left out: class, then a column a kernel.

    `source`: only those of this line of the source, in the classes of the whole kernel."""
    every = [code.counts() for code in listings]
    counts = every if source is None else [code.counts(source) for code in listings]
    return [
        {"class": name, **{short(code): c[name] for code, c in zip(listings, counts, strict=True)}}
        for name in (*CLASSES, REST)
        if any(c[name] for c in every)
    ]


def short(code: Listing) -> str:
    """A listing's config, as the kernel says it in brackets."""
    match = re.search(r"\[(.*)\]", code.kernel)
    return match[1] if match else code.kernel
