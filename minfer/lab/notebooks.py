"""Notebook files as this project keeps them: executed, canonical, and checked.

A canonical notebook differs from run to run only where its content does: cells are counted from 1, there
are no timings and no editor's metadata, widget ids are numbered in order of appearance, keys are sorted. Its
outputs stay, the last pictures and the widgets' state among them: they show when it is opened without being
run.

    python -m minfer.lab.notebooks execute notebooks/01_gemm_tiles.ipynb
    python -m minfer.lab.notebooks check notebooks/*.ipynb
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_CELL = 10
"""Lines of code a cell: what is longer belongs in a module."""
KERNEL_TAG = "kernel"
LONGEST_KERNEL = 20
"""The tag of cells that hold a kernel of the reader's own, and their lines."""
PICTURE_TAG = "nbval-ignore-output"
"""The tag of cells whose output is a picture, a widget or a timing: nbval runs them and compares nothing."""

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
_RANDOM_ID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f-]*)?$")
_VOLATILE = re.compile(r"\bat 0x[0-9a-f]{6,}|/tmp/|/home/|/root/")


def canonical(notebook: dict) -> dict:
    """A canonical copy of a notebook's JSON."""
    cells = [_cell(cell, number) for number, cell in enumerate(notebook["cells"])]
    _number_runs(cells)
    state = notebook.get("metadata", {}).get("widgets", {}).get(WIDGET_STATE)
    metadata = dict(METADATA)
    if state is not None:
        cells, kept = _renumber_widgets(cells, state["state"])
        if kept:
            widgets = {"state": kept, "version_major": 2, "version_minor": 0}
            metadata["widgets"] = {WIDGET_STATE: widgets}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def dump(notebook: dict) -> str:
    """The text of a notebook file: one-space indent, sorted keys, one final newline."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _cell(cell: dict, number: int) -> dict:
    tags = sorted(cell.get("metadata", {}).get("tags", []))
    name = cell.get("id", "")
    kept = {
        "cell_type": cell["cell_type"],
        "id": f"cell-{number:02d}" if not name or _RANDOM_ID.match(name) else name,
        "metadata": {"tags": tags} if tags else {},
        "source": _lines(cell["source"]),
    }
    if cell["cell_type"] == "code":
        run = cell.get("execution_count") is not None
        kept |= {"execution_count": 0 if run else None, "outputs": _outputs(cell.get("outputs", []))}
    return kept


def _number_runs(cells: list[dict]) -> None:
    """Count the cells that have run from 1: nbval compares only those, and a reader sees the order."""
    run = [cell for cell in cells if cell.get("execution_count") is not None]
    for number, cell in enumerate(run, 1):
        cell["execution_count"] = number
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number


def _outputs(outputs: list[dict]) -> list[dict]:
    kept: list[dict] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            text = "".join(output["text"])
            if kept and kept[-1]["output_type"] == "stream" and kept[-1]["name"] == output["name"]:
                kept[-1]["text"] = _lines("".join(kept[-1]["text"]) + text)
            else:
                kept.append({"output_type": "stream", "name": output["name"], "text": _lines(text)})
        elif kind == "error":
            kept.append({key: output[key] for key in ("output_type", "ename", "evalue", "traceback")})
        else:
            data = {mime: _data(mime, value) for mime, value in output["data"].items()}
            entry = {"output_type": kind, "data": data, "metadata": output.get("metadata", {})}
            kept.append(entry | ({"execution_count": None} if kind == "execute_result" else {}))
    return kept


def _data(mime: str, value):
    if mime.startswith("image/") and isinstance(value, (str, list)):
        return "".join(value).replace("\n", "")
    return _lines(value) if mime.startswith("text/") else value


def _lines(text: str | list[str]) -> list[str]:
    return "".join(text).splitlines(keepends=True)


def _renumber_widgets(cells: list[dict], state: dict) -> tuple[list[dict], dict]:
    """Cells and widget state, model ids counted in order of appearance, models that nobody shows left out."""
    order: dict[str, str] = {}

    def visit(model: str) -> None:
        if model in state and model not in order:
            order[model] = f"{len(order) + 1:032x}"
            for child in re.findall(r"IPY_MODEL_([0-9a-f]+)", json.dumps(state[model], sort_keys=True)):
                visit(child)

    for cell in cells:
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(WIDGET_VIEW)
            if view:
                visit(view["model_id"])
    if not order:
        return cells, {}
    pattern = re.compile("|".join(map(re.escape, order)))

    def renamed(value):
        return json.loads(pattern.sub(lambda match: order[match[0]], json.dumps(value)))

    return renamed(cells), renamed({model: state[model] for model in order})


def problems(path: Path) -> list[str]:
    """What keeps a notebook file from being canonical, a sentence each; empty if nothing does."""
    text = path.read_text()
    notebook = json.loads(text)
    found = []
    if dump(canonical(notebook)) != text:
        found.append(f"not canonical: run python -m minfer.lab.notebooks execute {path.name}")
    names = [cell.get("id") for cell in notebook["cells"]]
    found += [f"two cells are called {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            found += [f"cell {cell['id']}: {problem}" for problem in _cell_problems(cell)]
    return found


def _cell_problems(cell: dict) -> Iterable[str]:
    lines = [line for line in cell["source"] if line.strip()]
    longest = LONGEST_KERNEL if KERNEL_TAG in cell["metadata"].get("tags", []) else LONGEST_CELL
    if len(lines) > longest:
        yield f"{len(lines)} lines of code, at most {longest}: move it into minfer.lab"
    picture = PICTURE_TAG in cell["metadata"].get("tags", [])
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            yield f"its output is an error: {output['ename']}"
        if output.get("name") == "stderr":
            yield "it prints to stderr"
        mimes = set(output.get("data", {}))
        if mimes & {WIDGET_VIEW, "image/png"} and not picture:
            yield f"it shows a picture or a widget without the tag {PICTURE_TAG}"
        data = output.get("data", {})
        texts = [output.get("text", [])] + [data[mime] for mime in data if mime.startswith("text/")]
        if any(_VOLATILE.search("".join(text)) for text in texts):
            yield "its output holds an address or a path of this machine"


def execute(path: Path, timeout: int = 120) -> None:
    """Run a notebook top to bottom in a fresh kernel and write it back, canonical.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; the file is left as it was.
    """
    import os
    import tempfile

    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    where = {"metadata": {"path": ROOT}}
    # errors alone: the kernel would warn of TCP without encryption, which here does not leave the machine
    quiet = ["--log-level=40"]
    client = NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources=where, extra_arguments=quiet
    )
    with tempfile.TemporaryDirectory() as own:
        client.execute(env={**os.environ, "PYTHONPATH": search, "MINFER_OWN": own})
    path.write_text(dump(canonical(json.loads(nbformat.writes(notebook)))))


def main(arguments: list[str] | None = None) -> int:
    """`execute`, `canonicalize` or `check` the named notebooks; 1 if a problem is left."""
    import argparse

    about = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m minfer.lab.notebooks", description=about)
    parser.add_argument("action", choices=("execute", "canonicalize", "check"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    bad = 0
    for path in options.paths:
        if options.action == "execute":
            execute(path)
        elif options.action == "canonicalize":
            path.write_text(dump(canonical(json.loads(path.read_text()))))
        for problem in problems(path):
            bad = 1
            print(f"{path.name}: {problem}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
