"""The notebook files are canonical, whole and free of plumbing."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from minfer.lab import notebooks

FILES = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MAX_CELL_LINES = 10


def cells(path, kind="code"):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestNotebook:
    def test_the_file_is_canonical(self, path):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert path.read_text(encoding="utf-8") == notebooks.text(notebook), (
            f"run: python -m minfer.lab.notebooks notebooks/{path.name}"
        )

    def test_every_cell_ran_without_an_error(self, path):
        for cell in cells(path):
            for output in cell.outputs:
                assert output.output_type != "error"
                assert output.get("name") != "stderr", output

    def test_no_plumbing(self, path):
        for cell in cells(path):
            assert len(cell.source.splitlines()) <= MAX_CELL_LINES, cell.source

    def test_it_says_what_the_reader_will_know(self, path):
        first = cells(path, "markdown")[0].source
        assert first.startswith("# ")
        assert "you know" in first


def test_the_canonical_form_forgets_the_run():
    cell = nbformat.v4.new_code_cell("1", execution_count=3, metadata={"tags": ["x"], "collapsed": True})
    cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "1"}, execution_count=3)]
    widget = nbformat.v4.new_code_cell("w", metadata={"tags": [notebooks.INTERACTIVE]})
    widget.outputs = [nbformat.v4.new_output("display_data", {"text/plain": "w"})]
    notebook = nbformat.v4.new_notebook(cells=[cell, widget], metadata={"widgets": {"state": {}}})
    result = notebooks.canonical(notebook)
    assert result.cells[0].outputs[0].data == {"text/plain": "1"}
    assert result.cells[0].execution_count == result.cells[0].outputs[0].execution_count == 1
    assert result.cells[0].metadata == {"tags": ["x"]}
    assert result.cells[1].outputs == []
    assert "widgets" not in result.metadata
    assert cell.execution_count == 3, "the notebook itself is left as it is"
    assert notebooks.text(notebook) == notebooks.text(result)
