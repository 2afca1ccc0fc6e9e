"""Canonical notebook files: what is kept, what is dropped, what is refused."""

import copy
import json
from pathlib import Path

import pytest

from minfer.lab import notebooks

NOTEBOOKS = sorted((notebooks.ROOT / "notebooks").glob("*.ipynb"))
VIEW, STATE = notebooks.WIDGET_VIEW, notebooks.WIDGET_STATE


def code(source, outputs=(), **more):
    return {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "source": source,
        "execution_count": 3,
        "outputs": list(outputs),
    } | more


def notebook(*cells, **metadata):
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_projects_notebooks_are_canonical(path):
    assert notebooks.problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_reopened_notebooks_show_their_last_pictures(path):
    cells = json.loads(path.read_text())["cells"]
    shown = [
        output
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert shown
    for output in shown:
        assert output["data"]["text/plain"][0].startswith("[")


def test_volatile_things_are_dropped():
    cell = code(
        "x",
        [
            {"output_type": "stream", "name": "stdout", "text": "a"},
            {"output_type": "stream", "name": "stdout", "text": ["b\n"]},
            {
                "output_type": "execute_result",
                "execution_count": 7,
                "metadata": {},
                "data": {"text/plain": "1\n2"},
            },
            {
                "output_type": "display_data",
                "metadata": {},
                "transient": {"display_id": "q"},
                "data": {"image/png": "aa\nbb\n"},
            },
        ],
        metadata={"tags": ["z", "b"], "execution": {"iopub": 1}, "collapsed": False},
        id="3f2a9c41",
    )
    result = notebooks.canonical(notebook(cell, kernelspec={"name": "mine"}, vscode={}))
    (kept,) = result["cells"]
    assert kept["id"] == "cell-00" and kept["metadata"] == {"tags": ["b", "z"]}
    assert kept["execution_count"] == 1
    stream, value, image = kept["outputs"]
    assert stream["text"] == ["ab\n"]
    assert value["data"]["text/plain"] == ["1\n", "2"] and value["execution_count"] == 1
    assert image["data"]["image/png"] == "aabb" and "transient" not in image
    assert result["metadata"] == notebooks.METADATA


def test_canonical_is_a_fixed_point():
    once = notebooks.canonical(notebook(code("x = 1\ny", id="mine")))
    assert notebooks.canonical(copy.deepcopy(once)) == once
    assert once["cells"][0]["id"] == "mine"


def widget_notebook(first, second, stray):
    view = {
        "output_type": "display_data",
        "metadata": {},
        "data": {VIEW: {"model_id": first, "version_major": 2}},
    }
    state = {
        stray: {"model_name": "LayoutModel", "state": {}},
        second: {"model_name": "IntSliderModel", "state": {"value": 3}},
        first: {"model_name": "HBoxModel", "state": {"children": [f"IPY_MODEL_{second}"]}},
    }
    cell = code("explorer()", [view], metadata={"tags": [notebooks.PICTURE_TAG]}, id="x")
    return notebook(cell, widgets={STATE: {"state": state, "version_major": 2, "version_minor": 0}})


def test_widget_ids_are_numbered_and_strays_dropped():
    runs = [widget_notebook("a" * 32, "b" * 32, "c" * 32), widget_notebook("d" * 32, "e" * 32, "f" * 32)]
    one, two = map(notebooks.canonical, runs)
    assert one == two
    state = one["metadata"]["widgets"][STATE]["state"]
    assert list(state) == [f"{1:032x}", f"{2:032x}"]
    assert state[f"{1:032x}"]["state"]["children"] == [f"IPY_MODEL_{2:032x}"]
    assert one["cells"][0]["outputs"][0]["data"][VIEW]["model_id"] == f"{1:032x}"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (code("\n".join("x = 1" for _ in range(11))), "11 lines of code, at most 10"),
        (
            code("x", [{"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}]),
            "ValueError",
        ),
        (code("x", [{"output_type": "stream", "name": "stderr", "text": "w"}]), "prints to stderr"),
        (
            code("x", [{"output_type": "display_data", "metadata": {}, "data": {"image/png": "aa"}}]),
            "without the tag",
        ),
        (
            code("x", [{"output_type": "stream", "name": "stdout", "text": "<f at 0x7f0012345678>"}]),
            "an address",
        ),
        (
            code("x", [{"output_type": "stream", "name": "stdout", "text": "/home/me/model.gguf"}]),
            "a path of this machine",
        ),
    ],
)
def test_bad_cells_are_named(tmp_path, cell, words):
    path = tmp_path / "bad.ipynb"
    path.write_text(notebooks.dump(notebooks.canonical(notebook(cell))))
    (problem,) = notebooks.problems(path)
    assert problem.startswith("cell a: ") and words in problem


def test_untidy_files_and_twin_names_are_named(tmp_path):
    path = tmp_path / "untidy.ipynb"
    path.write_text(json.dumps(notebook(code("x"), code("y"))))
    problems = notebooks.problems(path)
    assert problems[0].startswith("not canonical") and problems[1] == "two cells are called a"


def test_the_command_line(tmp_path, capsys):
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(notebook(code("x"))))
    assert notebooks.main(["check", str(path)]) == 1
    assert "n.ipynb: not canonical" in capsys.readouterr().out
    assert notebooks.main(["canonicalize", str(path)]) == 0
    assert notebooks.main(["check", str(path)]) == 0


def test_execute_runs_and_stores_a_picture_and_its_widgets(tmp_path):
    source = "from minfer.lab.widgets import bank_explorer\nbank_explorer()"
    cell = code(source, metadata={"tags": [notebooks.PICTURE_TAG]}, id="bank")
    path = Path(tmp_path / "run.ipynb")
    path.write_text(json.dumps(notebook(code("print(6 * 7)", id="sum"), cell)))
    notebooks.execute(path)
    assert notebooks.problems(path) == []
    first, second = json.loads(path.read_text())["cells"]
    assert first["outputs"][0]["text"] == ["42\n"]
    assert VIEW in second["outputs"][0]["data"] and "image/png" in second["outputs"][1]["data"]
    before = path.read_text()
    notebooks.execute(path)
    assert path.read_text() == before
