"""Widgets without a browser: sliders reach the pure function, and what goes wrong is shown."""

import asyncio

import pytest
from traitlets import TraitError

from minfer.cuda.kernel import LaunchRefused, NoDevice
from minfer.engine.errors import EngineError
from minfer.lab.errors import error_html
from minfer.lab.explorer import NO_KERNEL, REST, Explorer, integers
from minfer.lab.picture import Picture
from minfer.lab.style import figure
from minfer.lab.widgets import (
    TileExplorer,
    bank_explorer,
    fragment_explorer,
    occupancy_explorer,
)


def counter():
    """An explorer over one number that refuses 7 and breaks at 8."""
    drawn = []

    def report(n):
        if n == 7:
            raise ValueError("7 is refused: choose another <number>")
        if n == 8:
            raise ZeroDivisionError("nobody expected 8")
        return n

    def picture(n):
        drawn.append(n)
        return Picture(figure(6.5, 2)[0], f"A picture of the number {n}", [{"n": n}])

    return Explorer("counter", {"n": integers(0, 9, 3, "n")}, report, picture, lambda n: f"<b>{n}</b>"), drawn


def test_a_slider_changes_the_number_and_the_picture():
    explorer, drawn = counter()
    assert (explorer.panel.value, drawn) == ("<b>3</b>", [3])
    explorer.set(n=5)
    assert (explorer.report, explorer.panel.value, drawn) == (5, "<b>5</b>", [3, 5])
    assert explorer.picture.rows == [{"n": 5}]


def test_a_refusal_is_a_sentence_and_the_picture_stays():
    explorer, _ = counter()
    explorer.set(n=7)
    assert "7 is refused: choose another &lt;number&gt;" in explorer.panel.value
    assert "traceback" not in explorer.panel.value
    assert explorer.picture.rows == [{"n": 3}]
    explorer.set(n=4)
    assert explorer.panel.value == "<b>4</b>"


def test_an_unforeseen_error_keeps_its_traceback():
    explorer, _ = counter()
    explorer.set(n=8)
    assert "ZeroDivisionError: nobody expected 8" in explorer.panel.value
    assert "<details><summary>traceback" in explorer.panel.value


def test_key_errors_read_like_sentences():
    assert "no device &#x27;x&#x27;" in error_html(KeyError("no device 'x'"))


def test_a_slider_dragged_fast_is_followed_when_it_rests():
    async def drag():
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now  # stands still, however long the machine takes
        explorer, drawn = counter()
        for n in (4, 5, 7, 8, 6):
            explorer.controls["n"].value = n
            await asyncio.sleep(0)
        assert drawn == [3]
        loop.time = lambda: now + 2 * REST
        for _ in range(3):
            await asyncio.sleep(0)
        return explorer, drawn

    explorer, drawn = asyncio.run(drag())
    assert (explorer.report, explorer.panel.value, drawn) == (6, "<b>6</b>", [3, 6])


def test_several_controls_set_together_are_followed_once():
    async def both():
        explorer, drawn = counter()
        explorer.set(n=5)
        return explorer.report, drawn

    assert asyncio.run(both()) == (5, [3, 5])


def test_a_value_that_is_not_offered_leaves_what_stands():
    explorer = bank_explorer()
    with pytest.raises(TraitError):
        explorer.set(row_halves=65)
    assert "8-way conflict" in explorer.panel.value


@pytest.mark.parametrize(
    "error",
    [
        NoDevice("no GPU"),
        LaunchRefused("k", "c", 2, 1, "H200", "bytes"),
        EngineError("no room"),
        MemoryError("full"),
    ],
)
def test_what_a_gpu_may_refuse_is_a_sentence(error):
    assert "traceback" not in error_html(error) and str(error) in error_html(error)


def test_controls_without_a_kernel_say_so():
    """JupyterLab marks widgets whose kernel is gone; the sentence is there already and shows by that mark."""
    explorer, _ = counter()
    note = explorer.box.children[0].children[0]
    assert NO_KERNEL in note.value and "jupyter-widgets-disconnected" in note.value
    assert "minfer-no-kernel" in note._dom_classes


def test_controls_wait_until_they_are_let_go():
    for explorer in (bank_explorer(), occupancy_explorer(), fragment_explorer(), TileExplorer(compile=False)):
        for control in explorer.controls.values():
            assert not getattr(control, "continuous_update", False)


def test_display_shows_controls_then_a_picture_that_is_updated_in_place(monkeypatch):
    shown = []

    class Handle:
        def update(self, picture):
            shown.append(("update", picture.rows[0]["n"]))

    def display(thing, **options):
        shown.append(("picture", thing.rows[0]["n"]) if options.get("display_id") else ("controls", thing))
        return Handle()

    monkeypatch.setattr("minfer.lab.explorer.display", display)
    explorer, _ = counter()
    explorer._ipython_display_()
    explorer.set(n=5)
    explorer.set(n=7)
    (kind, controls), *pictures = shown
    assert kind == "controls" and "counter" in controls["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in controls
    assert pictures == [("picture", 3), ("update", 5)]


class TestBankExplorer:
    def test_padding_cures_the_conflict(self):
        explorer = bank_explorer()
        assert "8-way conflict: 32 wavefronts where 4 would do" in explorer.panel.value
        explorer.set(padding=8)
        assert "no conflict" in explorer.panel.value

    def test_swizzle_cures_it_too(self):
        explorer = bank_explorer()
        explorer.set(swizzle=True)
        assert "no conflict" in explorer.panel.value

    def test_the_tile_layers_refusals_are_shown(self):
        explorer = bank_explorer()
        explorer.set(padding=3)
        assert "multiples of 16 bytes" in explorer.panel.value
        explorer.set(padding=8, swizzle=True)
        assert "no padding" in explorer.panel.value

    def test_words_can_be_read_at_paddings_that_ldmatrix_refuses(self):
        explorer = bank_explorer()
        explorer.set(access="column", padding=2)
        assert "no conflict: 1 wavefront" in explorer.panel.value
        assert "The kernels do not build these rows" in explorer.panel.value
        explorer.set(padding=8)
        assert "4-way conflict" in explorer.panel.value
        assert "The kernels do not build" not in explorer.panel.value
        explorer.set(padding=3)
        assert "not a multiple of the access width" in explorer.panel.value

    def test_a_phase_that_an_access_lacks_wraps(self):
        explorer = bank_explorer()
        explorer.set(phase=3)
        explorer.set(access="column")
        assert explorer.report.phase == 0


def test_occupancy_explorer_says_when_a_kernel_cannot_run():
    explorer = occupancy_explorer()
    assert "1 block an SM, 8 of 48 warps" in explorer.panel.value
    explorer.set(shared_kib=135)
    assert "138,240 B of shared memory a block" in explorer.panel.value
    explorer.set(where="h200")
    assert "1 block an SM" in explorer.panel.value


def test_fragment_explorer():
    explorer = fragment_explorer()
    explorer.set(lane=31, dtype="s8")
    assert "Lane 31" in explorer.panel.value and "lane 31 outlined" in explorer.picture.alt


class TestTileExplorer:
    def test_estimates_without_compiling(self):
        explorer = TileExplorer(compile=False)
        assert "(estimate)" in explorer.panel.value

    def test_illegal_choices_say_why_and_the_explorer_goes_on(self):
        explorer = TileExplorer(compile=False)
        explorer.set(stages=1)
        assert "needs at least 2" in explorer.panel.value
        explorer.set(stages=3)
        assert "needs at least 2" not in explorer.panel.value

    def test_wide_tile_on_a_small_device(self):
        explorer = TileExplorer(compile=False)
        explorer.set(tile_m=256, tile_k=64, stages=3)
        assert "the opt-in limit is 101,376 B" in explorer.panel.value

    def test_unknown_control(self):
        with pytest.raises(KeyError):
            TileExplorer(compile=False).set(tile_x=3)
