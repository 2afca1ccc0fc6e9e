"""Notebook files: executed, and written in one canonical form so that their diffs show what changed.

    python -m minfer.lab.notebooks notebooks/*.ipynb

runs notebooks from top to bottom and writes them back with their outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

INTERACTIVE = "interactive"
"""Tag of cells that need a running kernel (widgets): no output is kept, reports leave them out."""

CELL_TIMEOUT_S = 600


def canonical(notebook: NotebookNode) -> NotebookNode:
    """A copy without what changes from run to run or from machine to machine, outputs of cells aside.

    Kept of the metadata: the kernel's name, the language, cell tags. Code cells count 1, 2, 3.
    """
    notebook = nbformat.from_dict(notebook)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    count = 0
    for index, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags", [])
        cell.id = f"cell-{index:02d}"
        cell.metadata = {"tags": list(tags)} if tags else {}
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            cell.outputs = [] if INTERACTIVE in tags else cell.outputs
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = count
                if "metadata" in output:
                    output.metadata = {}
    return notebook


def text(notebook: NotebookNode) -> str:
    """The canonical file content of a notebook."""
    return nbformat.writes(canonical(notebook), version=4) + "\n"


def execute(path: Path) -> NotebookNode:
    """A notebook run from top to bottom in a new kernel, in its own folder; the file is left as it is.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--log-level=40"],
    )
    return client.execute()


def main(paths: list[str]) -> None:
    """Execute notebooks and write them back."""
    for path in map(Path, paths):
        path.write_text(text(execute(path)), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
