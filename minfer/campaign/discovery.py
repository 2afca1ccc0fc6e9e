"""Finding probes: those that minfer ships, and files or folders of one's own.

A probe's file holds one name `PROBE`, or several in a list `PROBES`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import keyword
import linecache
import os
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import minfer.campaign.later
import minfer.campaign.probes
from minfer.campaign.probe import Probe, ProbeError

FOLDERS = "MINFER_PROBES"
"""Environment variable: more files or folders of probes, separated as in PATH."""


def shipped() -> list[Probe]:
    """The seeds' probes, in their order."""
    return _of_package(minfer.campaign.probes)


def later() -> list[Probe]:
    """The probes that minfer ships beside the seeds'."""
    return _of_package(minfer.campaign.later)


def _of_package(package: ModuleType) -> list[Probe]:
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return [probe for module in modules for probe in _declared(module, module.__name__)]


def from_path(path: Path) -> list[Probe]:
    """The probes of a file, or of every .py file of a folder that does not begin with an underscore.

    Raises:
        ProbeError: no such file, a file that fails when it is run, or declares no probe.
    """
    return [probe for file in _files(path) for probe in _of_file(file)]


def _files(path: Path) -> list[Path]:
    """The file itself, or a folder's."""
    if path.is_dir():
        files = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
        if not files:
            raise ProbeError(f"{path}: no .py file with a probe")
        return files
    if not path.is_file():
        raise ProbeError(f"{path}: no such file or folder of probes")
    return [path]


def _of_file(path: Path) -> list[Probe]:
    """The probes that a file declares, which is run anew."""
    name = f"minfer_probe_{path.stem}_{hashlib.sha1(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProbeError(f"{path}: a probe's file ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    linecache.checkcache(str(path))  # it may have been edited since it was last read
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ProbeError(f"{path}: {type(error).__name__}: {error}") from error
    return _declared(module, str(path))


def write_new(name: str, path: Path) -> None:
    """Write a probe's file to begin with, a copy of `minfer.campaign.starter`.

    Raises:
        ProbeError: the name is none or taken, there is such a file, or its name is a word of Python's own or
            another module's.
    """
    from minfer.campaign import starter

    replace(starter.PROBE, name=name)  # refuses a bad name
    if name in {probe.name for probe in (*shipped(), *later())}:
        raise ProbeError(f"{name} is a probe of minfer's own: choose another name")
    if path.suffix != ".py":
        raise ProbeError(f"{path}: a probe's file ends with .py")
    if path.exists():
        raise ProbeError(f"{path} is there already: choose another name or file")
    if keyword.iskeyword(path.stem):
        raise ProbeError(f"{path}: {path.stem} is a word of Python's own: choose another file with -o")
    if hidden := _module_elsewhere(path):
        raise ProbeError(
            f"{path} would hide the module {path.stem} ({hidden}) from what runs in its folder: "
            "choose another file with -o"
        )
    text = Path(starter.__file__).read_text(encoding="utf-8")
    first = text.index("\n\n")  # the docstring's first line; the others are about the copying
    text = text[:first] + text[text.index('"""', first) :]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace('name="row-sum"', f'name="{name}"'), encoding="utf-8")


def _module_elsewhere(path: Path) -> str:
    """Where a module comes from that has the name of a probe's new file, and is neither beside it nor in the
    working folder; "": there is none."""
    if not path.stem.isidentifier():  # nothing imports it
        return ""
    try:
        spec = importlib.util.find_spec(path.stem)
    except ValueError:  # __main__
        return path.stem
    if spec is None or spec.origin is None:  # a mere folder hides nothing
        return ""
    own = path.parent.resolve(), Path.cwd()
    return "" if spec.has_location and Path(spec.origin).resolve().parent in own else spec.origin


def find(paths: Iterable[Path] = ()) -> dict[str, Probe]:
    """Every probe by name: shipped, of `$MINFER_PROBES`, and of `paths`; a file that is named twice counts
    once.

    Raises:
        ProbeError: two of the same name, and as `from_path`.
    """
    more = [Path(part) for part in os.environ.get(FOLDERS, "").split(os.pathsep) if part]
    files = {file.resolve(): file for path in (*more, *paths) for file in _files(path)}
    found: dict[str, Probe] = {}
    homes: dict[str, str] = {}
    sources = [
        ("minfer itself", [*shipped(), *later()]),
        *((str(file), _of_file(file)) for file in files.values()),
    ]
    for home, probes in sources:
        for probe in probes:
            if probe.name in found and found[probe.name] is not probe:
                where = (
                    f"both in {home}" if homes[probe.name] == home else f"in {homes[probe.name]} and {home}"
                )
                raise ProbeError(f"two probes are called {probe.name}, {where}: rename one")
            found[probe.name], homes[probe.name] = probe, home
    return found


def choose(names: Iterable[str], paths: Iterable[Path] = ()) -> list[Probe]:
    """The probes of these names.

    Raises:
        ProbeError: a name that there is not; the message lists those there are.
    """
    known = find(paths)
    for name in names:
        if name not in known:
            raise ProbeError(
                f"no probe is called {name!r}: there are {', '.join(known)}; "
                "a file of your own: --probes FILE"
            )
    return [known[name] for name in names]


def _declared(module: ModuleType, where: str) -> list[Probe]:
    found = getattr(module, "PROBES", None)
    found = [getattr(module, "PROBE", None)] if found is None else found
    if (
        not isinstance(found, list | tuple)
        or not found
        or not all(isinstance(probe, Probe) for probe in found)
    ):
        raise ProbeError(f"{where}: declare PROBE = Probe(...), or PROBES, a list of them")
    return list(found)
