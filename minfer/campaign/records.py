"""Records: what was measured, where and when, one JSON file a run under data/records.

Every figure that a page, a table or a notebook shows as measured comes through here. A record is of one
`kind`, each a dataclass whose fields are the file's; a file that does not fit is refused with its name and
the field. `schema` is the version of the layout; a file without it is of version 1, and read as what it would
be today.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from minfer.campaign.against import Against
from minfer.campaign.probe_record import ProbeRun
from minfer.campaign.record import SCHEMA, Record, RecordError, Telemetry, checked_positive
from minfer.campaign.schema import build, plain
from minfer.campaign.wall_record import Wall
from minfer.engine.bench import BenchResult
from minfer.model.whole_file import whole_file

__all__ = [
    "FOLDER",
    "KINDS",
    "SCHEMA",
    "Against",
    "Bench",
    "GpuTests",
    "ProbeRun",
    "Record",
    "RecordError",
    "Sweep",
    "Wall",
    "annotate",
    "check_folder",
    "load_records",
    "newest_measured",
    "read_record",
    "write_record",
]

FOLDER = Path(__file__).resolve().parents[2] / "data" / "records"
MOST_READ = {"sm_mhz": 1e4, "memory_mhz": 1e5, "power_w": 1e4, "temperature_c": 200.0}
"""Of a sensor of one GPU."""
TOLERANCE = 0.01
"""A rate and the time that it follows from agree to so much."""


@dataclass(frozen=True, kw_only=True)
class GpuTests(Record):
    """A run of tests/gpu: outcomes by file, and what the tests measured on the way (names carry the unit)."""

    kind: ClassVar[str] = "gpu-tests"

    arch: str
    cuda: str
    python: str
    versions: dict[str, str]
    passed: int
    failed: int
    skipped: int
    seconds: float
    files: dict[str, dict[str, int]]
    failures: dict[str, str]
    skips: dict[str, str]
    measured: dict[str, Any]

    def check(self) -> None:
        super().check()
        for outcome in ("passed", "failed", "skipped"):
            told = sum(counts.get(outcome, 0) for counts in self.files.values())
            if told != getattr(self, outcome):
                raise ValueError(f"{outcome}: {getattr(self, outcome)}, but its files add up to {told}")

    def figure(self, name: str) -> float:
        """One figure that the run measured.

        Raises:
            KeyError: it measured no such thing; the message lists names that begin alike.
            RecordError: it is no number.
        """
        if name not in self.measured:
            alike = [known for known in self.measured if known.split(" ")[0] == name.split(" ")[0]]
            raise KeyError(f"{self.file} has no figure {name!r}; alike: {', '.join(alike) or 'none'}")
        value = self.measured[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RecordError(f"{self.file}: measured[{name!r}]: {value!r} is no finite number")
        return float(value)


@dataclass(frozen=True, kw_only=True)
class Measured(Record):
    """Results of `minfer bench`, all on one device; `command` is its command line."""

    command: str
    results: list[BenchResult]

    def check(self) -> None:
        super().check()
        if not self.results:
            raise ValueError("results: a list of at least one test is needed")
        for place, result in enumerate(self.results):
            try:
                checked_positive(result, "avg_ns", "avg_ts")
                _agrees("avg_ts", result.avg_ts, (result.n_prompt + result.n_gen) / result.avg_ns * 1e9)
                for name, reading in result.sensors.items():
                    if not 0 <= reading <= MOST_READ.get(name, math.inf):
                        raise ValueError(f"sensors[{name!r}]: {reading:g} is nothing that a sensor reads")
                if _name(result.device) != self.device:
                    raise ValueError(f"device: {result.device!r} beside {self.device!r}")
            except ValueError as error:
                raise ValueError(f"results[{place}].{error}") from None

    @property
    def model(self) -> str:
        """The model file's name, without its ending."""
        return Path(self.results[0].model_filename).stem


@dataclass(frozen=True, kw_only=True)
class Bench(Measured):
    """A run of one route: its tests."""

    kind: ClassVar[str] = "bench"

    @property
    def route(self) -> str:
        """The cuda backend's route, or the name of another backend."""
        return self.results[0].settings.get("route", self.results[0].backend)

    @property
    def regime(self) -> str:
        """ "burst" or "sustained"."""
        return self.results[0].regime

    @property
    def stem(self) -> str:
        """The beginning of its file's name."""
        return f"bench-{self.model}-{self.route}" + ("" if self.regime == "burst" else f"-{self.regime}")

    def result(self, test: str) -> BenchResult:
        """The result of a test ("pp2048").

        Raises:
            RecordError: the run has no such test.
        """
        for result in self.results:
            if result.test == test:
                return result
        tests = ", ".join(result.test for result in self.results)
        raise RecordError(f"{self.file}: results: no test {test}, only {tests}")


@dataclass(frozen=True, kw_only=True)
class Sweep(Measured):
    """Prefills of variants (`minfer.engine.cuda.variants`), interleaved in one process: a result each, whose
    settings name the `variant` and what it `changes`.

    Attributes:
        rest_s: seconds of rest before each prefill.
    """

    kind: ClassVar[str] = "sweep"

    rest_s: float
    telemetry: Telemetry

    def check(self) -> None:
        super().check()
        if len({result.test for result in self.results}) > 1:
            raise ValueError("results: of more than one test")
        for place, result in enumerate(self.results):
            if missing := {"variant", "changes"} - result.settings.keys():
                raise ValueError(f"results[{place}].settings: no {' and no '.join(sorted(missing))}")
        if len(self.variants) < len(self.results):
            raise ValueError("results: a variant more than once")

    @property
    def variants(self) -> dict[str, BenchResult]:
        """The results by the variants' names."""
        return {result.settings["variant"]: result for result in self.results}

    def variant(self, name: str) -> BenchResult:
        """The result of a variant.

        Raises:
            RecordError: the sweep has no such variant.
        """
        if name not in self.variants:
            raise RecordError(f"{self.file}: results: no variant {name}, only {', '.join(self.variants)}")
        return self.variants[name]

    @property
    def stem(self) -> str:
        """The beginning of its file's name."""
        return f"sweep-{self.model}-{self.results[0].test}"


KINDS: dict[str, type[Record]] = {
    kind.kind: kind for kind in (GpuTests, Bench, Sweep, ProbeRun, Wall, Against)
}
"""Every kind of record by its name."""


def load_records(folder: Path = FOLDER, kind: str | None = None, device: str | None = None) -> list[Record]:
    """Every record below `folder`, or those of one kind and device, oldest first.

    Args:
        kind: a key of `KINDS`. device: a key of `minfer.arithmetic.devices`, or a name as records hold it.

    Raises:
        RecordError: a file that is no valid record, or an unknown kind. FileNotFoundError: no such folder.
    """
    if kind is not None and kind not in KINDS:
        raise RecordError(f"kind {kind!r} is unknown; known: {', '.join(KINDS)}")
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: the records come with the repository")
    found = [read_record(path) for path in sorted(folder.rglob("*.json"))]
    return sorted(
        (
            record
            for record in found
            if (kind is None or record.kind == kind) and (device in (None, record.device, record.device_key))
        ),
        key=lambda record: (datetime.fromisoformat(record.date), record.file),
    )


def newest_measured(records: Iterable[Record], device: str, names: Collection[str]) -> GpuTests:
    """The newest run of the GPU tests on a device (a key of `minfer.arithmetic.devices`) that measured all
    these figures.

    Raises:
        RecordError: there is none.
    """
    runs = [r for r in records if isinstance(r, GpuTests) and r.device_key == device]
    whole = [run for run in runs if run.measured.keys() >= set(names)]
    if not whole:
        raise RecordError(f"no gpu-tests record of {device} holds {', '.join(names)}")
    return max(whole, key=lambda run: datetime.fromisoformat(run.date))


def read_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        RecordError: it is no JSON, of an unknown kind or a newer schema, a field is missing, unknown or of
            the wrong type, or its figures contradict each other.
    """
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path.name}: no JSON: {error}") from None
    try:
        return _record(entry, path.name)
    except ValueError as error:
        raise RecordError(f"{path.name}: {error}") from None


def _record(entry: Any, file: str) -> Record:
    if not isinstance(entry, dict):
        raise ValueError(f"a record is an object, not {type(entry).__name__}")
    kind = KINDS.get(str(entry.get("kind")))
    if kind is None:
        raise ValueError(f"kind: {entry.get('kind')!r} is unknown; known: {', '.join(KINDS)}")
    schema = entry.get("schema", 1)
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise ValueError(f"schema: {schema!r}, this version of minfer reads 1 to {SCHEMA}")
    if "file" in entry:
        raise ValueError("file: no such field")
    values = {name: value for name, value in entry.items() if name != "kind"} | {"file": file}
    if kind is Bench:
        values |= _bench(entry)
    made = build(kind, values | {"schema": SCHEMA})
    made.check()
    return made


def _bench(entry: dict[str, Any]) -> dict[str, Any]:
    """What a bench record leaves to be told from the rest of it.

    Each result names its device, and the record's is theirs. Results of schema 1 had no time of their own:
    the record's date stands in.
    """
    results = entry.get("results")
    if not isinstance(results, list) or not results or not all(isinstance(r, dict) for r in results):
        raise ValueError("results: a list of at least one test is needed")
    device = entry.get("device", _name(str(results[0].get("device", ""))))
    return {"device": device, "results": [{"test_time": entry.get("date"), **r} for r in results]}


def _name(device: str) -> str:
    """The device's name in a backend's description of it."""
    return device.partition(" (")[0]


def _agrees(name: str, told: float, follows: float) -> None:
    if not math.isclose(told, follows, rel_tol=TOLERANCE):
        raise ValueError(f"{name}: {told:,.1f}, but {follows:,.1f} follows from its time")


def write_record(record: Record, folder: Path = FOLDER, *, stem: str) -> Path:
    """Write a record below `folder`, whole or not at all, and return its path: <device>/<stem>-<day>.json,
    with a number where that exists.

    Raises:
        RecordError: the record contradicts itself, or would not read back as it is.
    """
    target = folder / (record.device_key or _slug(record.device))
    target.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        path, number = target / f"{stem}-{record.day}.json", 2
        while path.exists():
            path, number = target / f"{stem}-{record.day}-{number}.json", number + 1
        _replace(path, record)
    return path


def check_folder(folder: Path) -> None:
    """Raise RecordError where no record could be written below `folder`: before it is measured for one."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RecordError(f"{folder}: {there} is no folder that can be written to: give another --out")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process does this in the folder at the same time."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def annotate(path: Path, **words: str) -> ProbeRun:
    """Write what a person made of a probe's run into its record: mechanism, retry, reason. What was measured
    stays as it is.

    Raises:
        RecordError: no record of a probe, or another field.
    """
    record = read_record(path)
    if not isinstance(record, ProbeRun) or set(words) - {"mechanism", "retry", "reason"}:
        raise RecordError(f"{path.name}: only a probe's mechanism, retry and reason are written afterwards")
    noted = replace(record, **words)
    _replace(path, noted)
    return noted


def _replace(path: Path, record: Record) -> None:
    """Put a record into a file, which it replaces at once when it is whole and reads back as it is."""
    try:
        record.check()
        entry = plain(record)
    except ValueError as error:
        raise RecordError(f"{path.stem}: not written: {error}") from None
    entry = {"kind": record.kind, "schema": SCHEMA} | {
        name: value for name, value in entry.items() if name not in ("file", "schema")
    }
    text = json.dumps(entry, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with whole_file(path, len(text), RecordError) as part:
        part.write_text(text, encoding="utf-8")
        back = _record(json.loads(part.read_text(encoding="utf-8")), path.name)
        names = [f.name for f in fields(record) if f.name != "file"]
        if unlike := [n for n in names if plain(getattr(back, n)) != plain(getattr(record, n))]:
            raise RecordError(f"{path.stem}: not written: {', '.join(unlike)} would not read back")


def _slug(device: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in device.lower()).strip("-")
