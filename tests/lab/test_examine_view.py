"""An examination in a notebook: tables, requests, code, the player."""

from __future__ import annotations

import pytest

from minfer.campaign.probe import ProbeError
from minfer.lab.examine_view import examine, own_file
from minfer.lab.requests_view import draw_requests
from tests.campaign.test_probes import EXAMPLE


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """README's probe."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(EXAMPLE)
    return examine(path)


def test_the_tables(shown):
    text = repr(shown)
    for words in ("double-vector: both sides are right", "Right?", "races   yes", "resident warps",
                  "Machine instructions", "12.67    3.167"):  # fmt: skip
        assert words in text
    assert "<b>double-vector</b>: both sides are right" in shown._repr_html_()


def test_requests(shown, sound):
    assert shown.worst().splitlines()[1] == (
        "variant: 12.6667 sectors a request, at best 3.16667: out[i] = x[i] * 2"
    )
    rows = sound(shown.requests()).rows
    assert [row["name"] for row in rows][-1].startswith("variant: mine.py:18 ")
    assert max(row["a request"] for row in rows) == pytest.approx(152 / 12)


def test_both_kinds_of_requests_stand_side_by_side(sound):
    rows = [
        {"name": "ld.global", "unit": "sectors", "a request": 32.0, "at best": 4.0},
        {"name": "ld.shared", "unit": "wavefronts", "a request": 1.0, "at best": 1.0},
    ]
    picture = sound(draw_requests(rows, "Requests of a global load and a shared load"))
    assert len(picture.figure.axes) == 2
    assert draw_requests([], "No requests").png()


def test_code(shown):
    view = shown.code()
    assert view.values["config"] == "baseline" and "out[i] = x[i] * 2" in view.panel.value
    view.set(against="variant")
    assert len(view.report.listings) == 2 and "+ Config(each=4)" in view.panel.value


def test_the_player_shows_both_sides(shown):
    player = shown.player()
    assert list(player.films) == ["baseline", "variant"] and "ld.global: 4 sectors" in player.panel.value
    player.set(name="variant")
    player.jump("scattered")
    assert "16 sectors where 4 would do" in player.panel.value


def test_an_edited_file_is_read_anew(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE)
    assert examine(path).found.right
    path.write_text(EXAMPLE.replace("out[i] = x[i] * 2", "out[i] = nowhere[i]"))
    again = examine(path)
    assert not again.found.right and "nowhere" in again.gate_rows()[0]["found"]
    assert "double-vector: not right yet" in repr(again) and "is not defined" in again._repr_html_()
    with pytest.raises(ProbeError, match="nothing was traced"):
        again.player()
    with pytest.raises(ValueError, match="nowhere"):
        again.code()
    path.write_text(EXAMPLE.replace("out[i] = x[i] * 2", "out[i] = x[i] + x[i]"))
    assert {row["source"] for row in examine(path).found.memory_rows()} == {"out[i] = x[i] + x[i]"}


def test_a_file_of_several_probes(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        EXAMPLE + "\nfrom dataclasses import replace\nPROBES = [PROBE, replace(PROBE, name='two')]\n"
    )
    with pytest.raises(ProbeError, match="say which probe by name: double-vector, two"):
        examine(path)
    assert examine(path, "two").found.probe == "two"


def test_a_file_of_ones_own_is_written_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINFER_OWN", raising=False)
    path = own_file("my-sum")
    assert str(path) == "own/my_sum.py" and "PROBE = Probe(" in path.read_text()
    path.write_text("mine")
    assert own_file("my-sum").read_text() == "mine"
    monkeypatch.setenv("MINFER_OWN", str(tmp_path / "elsewhere"))
    assert own_file("my-sum").parent == tmp_path / "elsewhere"


def test_two_launches_of_one_kernel_name_are_both_shown(tmp_path):
    path = tmp_path / "mine.py"
    launch = "Launch.of(kernel(make_double, config), grid, arrays["
    path.write_text(
        EXAMPLE.replace(
            f"return [{launch}", f"f = lambda made: {launch.replace('config)', 'made)')}"
        ).replace('case["n"])]', 'case["n"])\n        return [f(config), f(Config(2))]')
    )
    shown = examine(path)
    names = [f"{side}, double{more}" for side in ("baseline", "variant") for more in ("", " (2)")]
    assert list(shown.player().films) == names
    assert list(shown.code().configs) == names
