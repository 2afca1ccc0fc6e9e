"""Records: what was measured, where and when, one JSON file a run under data/records.

Every figure that a page, a table or a notebook shows as measured comes through here. A record is of one
`kind`, each a dataclass below whose fields are the file's; a file that does not fit is refused with its name
and the field. `schema` is the version of the layout; a file without it is of version 1.
"""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from minfer.arithmetic.devices import by_name
from minfer.engine.bench import BenchResult

FOLDER = Path(__file__).resolve().parents[2] / "data" / "records"
SCHEMA = 1
"""The newest layout that this module reads."""
TOLERANCE = 0.01
"""A rate and the time that it follows from agree to so much."""


class RecordError(ValueError):
    """A record that cannot be used; the message names the file and the field."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all kinds hold.

    Attributes:
        file: the record's file name.
        date: ISO 8601, with its offset from UTC. commit: of the code that ran.
        device: the GPU's name as its driver reports it, or the host backend's description of the processor.
        driver: the driver package's version.
    """

    kind: ClassVar[str]

    file: str
    date: str
    commit: str
    device: str
    driver: str
    schema: int = SCHEMA

    def check(self) -> None:
        """Raise ValueError("field: what is wrong") for values that contradict each other."""
        _dated(self.date)

    @property
    def day(self) -> str:
        """The date without its time."""
        return self.date[:10]

    @property
    def device_key(self) -> str | None:
        """The device's key in `minfer.arithmetic.devices`, None if the table has no such device."""
        known = by_name(self.device)
        return None if known is None else known.key

    @property
    def origin(self) -> str:
        """Where and when, for a caption."""
        return f"{self.device}, driver {self.driver}, {self.day}, commit {self.commit}"


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
        """
        if name not in self.measured:
            alike = [known for known in self.measured if known.split(" ")[0] == name.split(" ")[0]]
            raise KeyError(f"{self.file} has no figure {name!r}; alike: {', '.join(alike) or 'none'}")
        return float(self.measured[name])


@dataclass(frozen=True, kw_only=True)
class Prefill(Record):
    """One prefill variant: `ms` and `avg_ts` (tokens a second) of a prompt of `n_prompt` tokens."""

    kind: ClassVar[str] = "prefill"

    model: str
    n_prompt: int
    cuda: str
    settings: dict[str, str]
    ms: float
    avg_ts: float

    def check(self) -> None:
        super().check()
        _positive(self, "n_prompt", "ms", "avg_ts")
        _agrees("avg_ts", self.avg_ts, self.n_prompt / self.ms * 1e3)


@dataclass(frozen=True, kw_only=True)
class Bench(Record):
    """A run of `minfer bench`: its tests, all on one device."""

    kind: ClassVar[str] = "bench"

    command: str
    results: list[BenchResult]

    def check(self) -> None:
        super().check()
        for place, result in enumerate(self.results):
            try:
                _positive(result, "avg_ns", "avg_ts")
                _agrees("avg_ts", result.avg_ts, (result.n_prompt + result.n_gen) / result.avg_ns * 1e9)
                if _name(result.device) != self.device:
                    raise ValueError(f"device: {result.device!r} beside {self.device!r}")
            except ValueError as error:
                raise ValueError(f"results[{place}].{error}") from None

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


KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in (GpuTests, Bench, Prefill)}
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
    except ValueError as error:
        raise RecordError(f"{path.name}: no JSON: {error}") from error
    try:
        return _record(entry, path.name)
    except ValueError as error:
        raise RecordError(f"{path.name}: {error}") from None


def _record(entry: Any, file: str) -> Record:
    if not isinstance(entry, dict):
        raise ValueError(f"a record is an object, not {type(entry).__name__}")
    kind = KINDS.get(entry.get("kind"))
    if kind is None:
        raise ValueError(f"kind: {entry.get('kind')!r} is unknown; known: {', '.join(KINDS)}")
    schema = entry.get("schema", SCHEMA)
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise ValueError(f"schema: {schema!r}, this version of minfer reads 1 to {SCHEMA}")
    if "file" in entry:
        raise ValueError("file: no such field")
    values = {name: value for name, value in entry.items() if name != "kind"} | {"file": file}
    if kind is Bench:
        values |= _bench(entry)
    made = _build(kind, values, "")
    made.check()
    return made


def _bench(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a bench record leaves to be told from the rest of it.

    Each result names its device, and the record's is theirs. The first results had no time of their own: the
    record's date stands in.
    """
    results = entry.get("results")
    if not isinstance(results, list) or not results or not all(isinstance(r, dict) for r in results):
        raise ValueError("results: a list of at least one test is needed")
    device = entry.get("device", _name(str(results[0].get("device", ""))))
    return {"device": device, "results": [{"test_time": entry.get("date"), **r} for r in results]}


def _build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass from JSON, every field checked against its annotation."""
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    for name in values:
        if name not in known:
            raise ValueError(f"{where}{name}: no such field")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}{name}: missing")
    return cls(**{name: _value(value, hints[name], f"{where}{name}") for name, value in values.items()})


def _value(value: Any, hint: Any, where: str) -> Any:
    """`value` if it is of the annotated type; a list's and a dict's members too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint):
        return _build(hint, _is(value, dict, where), f"{where}.")
    if origin is list:
        members = _is(value, list, where)
        return [_value(member, arguments[0], f"{where}[{i}]") for i, member in enumerate(members)]
    if origin is dict:
        members = _is(value, dict, where)
        return {key: _value(member, arguments[1], f"{where}[{key!r}]") for key, member in members.items()}
    return _is(value, hint, where)


def _is(value: Any, wanted: type, where: str) -> Any:
    allowed = (int, float) if wanted is float else (wanted,)
    if isinstance(value, bool) is not (wanted is bool) or not isinstance(value, allowed):
        raise ValueError(f"{where}: {value!r} is no {wanted.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} is no finite number")
    return value


def _name(device: str) -> str:
    """The device's name in a backend's description of it."""
    return device.partition(" (")[0]


def _dated(date: str) -> None:
    try:
        zone = datetime.fromisoformat(date).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise ValueError(f"date: {date!r} is no ISO 8601 date with a time and its offset from UTC")


def _positive(holder: Any, *names: str) -> None:
    for name in names:
        if getattr(holder, name) <= 0:
            raise ValueError(f"{name}: {getattr(holder, name)} is not above 0")


def _agrees(name: str, told: float, follows: float) -> None:
    if not math.isclose(told, follows, rel_tol=TOLERANCE):
        raise ValueError(f"{name}: {told:,.1f}, but {follows:,.1f} follows from its time")
