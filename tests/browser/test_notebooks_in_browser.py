"""The notebooks as a reader has them: opened, run, dragged, saved, reopened, and their kernel restarted."""

import base64
import subprocess
import sys

import pytest

from minfer.cuda import runtime
from minfer.lab.explorer import NO_KERNEL
from minfer.lab.lane_player import gemm_film
from minfer.lab.widgets import bank_explorer
from tests.browser.conftest import ARTIFACTS, UNTRUSTED

pytestmark = [pytest.mark.slow, pytest.mark.browser]
BANKS = "02_bank_conflicts_and_fragments.ipynb"


def width_of(image) -> int:
    """A picture's own width in pixels, once it is decoded."""
    return image.evaluate("image => image.decode().then(() => image.naturalWidth)")


def test_banks_run_drag_save_and_reopen(open_notebook):
    notebook = open_notebook(BANKS)
    notebook.run_all()

    cell = notebook.cell("bank-explorer")
    cell.get_by_text("8-way conflict").first.wait_for()
    before = notebook.picture(cell)
    assert notebook.drag(cell, "padding (halves)", 0.5) == "8"
    notebook.wait_for_other_picture(cell, before)
    cell.get_by_text("no conflict: 4 wavefronts").first.wait_for()

    # a slider that moves faster than pictures can be drawn: only where it rests counts
    notebook.hurry(cell, "padding (halves)", "Home", *["ArrowRight"] * 16)
    cell.get_by_text("2-way conflict: 8 wavefronts where 4 would do").first.wait_for()
    cell.get_by_text("rows are 160 B apart").wait_for()
    rested = bank_explorer()
    rested.set(padding=16)
    notebook.wait_for_picture(cell, rested.picture.png())
    notebook.screenshot("banks-dragged")

    player = notebook.cell("lane-player")
    before = notebook.picture(player)
    player.get_by_text("next conflict").click()
    notebook.wait_for_other_picture(player, before)
    second = gemm_film("plain").conflicts[1]  # it starts at the first
    player.get_by_text(f"Step {second + 1} of 82").first.wait_for()
    player.get_by_text("2-way conflict: 8 wavefronts where 4 would do").first.wait_for()
    notebook.screenshot("lane-player")

    shown = notebook.picture(player)
    notebook.save()
    saved = {cell["id"]: cell for cell in notebook.cells()}["lane-player"]
    picture = saved["outputs"][-1]["data"]["image/png"]
    assert shown == f"data:image/png;base64,{picture.replace(chr(10), '')}"
    assert base64.b64decode(picture).startswith(b"\x89PNG")

    again = open_notebook(BANKS)
    assert again.picture(again.cell("lane-player")) == shown


def test_the_report_of_make_run_opens_without_a_server(chromium, lab, tmp_path):
    """As `make run` makes it, but of the outputs that are there already."""
    _, folder = lab
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--log-level", "ERROR", "--to", "html"]
    command += [
        "--TagRemovePreprocessor.enabled=True",
        "--TagRemovePreprocessor.remove_cell_tags=interactive",
    ]
    command += ["--output-dir", str(tmp_path), str(folder / "00_start_here.ipynb")]
    subprocess.run(command, check=True)
    page = chromium.new_context(offline=True, viewport={"width": 1100, "height": 1400}).new_page()
    failures = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto((tmp_path / "00_start_here.html").as_uri(), wait_until="domcontentloaded")
    images = page.locator("img")
    assert images.count() >= 2
    assert all(width_of(image) > 600 for image in images.all())
    assert page.get_by_text("Where the time went").first.is_visible()
    assert page.locator(".jupyter-widgets").count() == 0 and failures == []
    images.last.scroll_into_view_if_needed()
    page.screenshot(path=str(ARTIFACTS / "report.png"))


@pytest.mark.parametrize(
    ("name", "explorer", "slider", "says"),
    [
        (UNTRUSTED, "flight-explorer", "latency (ns)", "KiB an SM keep DRAM busy"),
        ("05_wall_decomposition.ipynb", "what-if-explorer", "us/GMAC", "tok/s, measured"),
    ],
)
def test_run_all_and_drag(open_notebook, name, explorer, slider, says):
    notebook = open_notebook(name)
    notebook.run_all()
    cell = notebook.cell(explorer)
    cell.get_by_text(says).wait_for()
    text, before = cell.inner_text(), notebook.picture(cell)
    readout = notebook.drag(cell, slider, 0.9)
    assert readout and readout not in text
    notebook.wait_for_other_picture(cell, before)
    assert cell.inner_text() != text
    notebook.screenshot(f"dragged-{explorer}")


def test_a_kernel_of_ones_own(open_notebook):
    notebook = open_notebook("11_your_own_kernel.ipynb")
    notebook.run_all()
    assert (notebook.path.parent / "own" / "row_sum.py").exists()

    lanes = notebook.cell("own-lanes")
    lanes.get_by_text("32 sectors where 4 would do").first.wait_for()
    notebook.output_picture(lanes, "lanes-and-sectors")
    before = notebook.picture(lanes)
    lanes.get_by_role("button", name="next scattered").click()
    notebook.wait_for_other_picture(lanes, before)
    lanes.get_by_text("Step 2 of 194").first.wait_for()

    code = notebook.cell("own-code")
    other = code.locator(".widget-dropdown", has_text="compare with").locator("select")
    other.select_option(label="a warp a row")
    code.get_by_text("- a thread a row, + a warp a row").wait_for()
    notebook.screenshot("own-kernel")
    notebook.output_picture(code, "compared-machine-code")


def test_start_here_streams_and_goes_on_after_a_restart(open_notebook):
    notebook = open_notebook("00_start_here.ipynb")
    notebook.run_all()
    panel = notebook.cell("cell-11")

    # a wrong path is a sentence
    path = panel.get_by_placeholder("path of a .gguf file")
    path.fill("/nowhere/model.gguf")
    path.press("Enter")
    panel.get_by_role("button", name="Run").click()
    panel.get_by_text("/nowhere/model.gguf").last.wait_for()
    path.fill("")
    path.press("Enter")

    # a GPU that is not here is one too
    if not runtime.available():
        device = panel.locator(".widget-dropdown", has_text="device").locator("select")
        device.select_option(label="the GPU")
        panel.get_by_role("button", name="Run").click()
        panel.get_by_text("no NVIDIA driver").last.wait_for()
        notebook.screenshot("no-gpu")
        device.select_option(label="the CPU")

    # text streams in, and Stop ends it, or comes too late: the run takes a third of a second
    notebook.drag(panel, "tokens", 1)
    notebook.press_at(panel, "Running ...", "Stop")
    panel.get_by_role("button", name="Run").click()
    panel.get_by_text("tok/s").wait_for()
    notebook.screenshot("start-here")

    # the kernel is restarted in the middle of a run: the controls say so, and the notebook goes on
    panel.get_by_role("button", name="Run").click()
    assert not panel.get_by_text(NO_KERNEL).is_visible()
    notebook.menu("Kernel", "Restart Kernel…")
    notebook.page.locator(".jp-Dialog button", has_text="Restart").click()
    panel.get_by_text(NO_KERNEL).wait_for()
    notebook.screenshot("kernel-restarted")
    notebook.wait_for_kernel()
    notebook.run_all()
    assert not notebook.cell("cell-11").get_by_text(NO_KERNEL).is_visible()


@pytest.mark.parametrize(
    ("name", "explorer"),
    [("03_flash_attention.ipynb", "tkv-explorer"), (UNTRUSTED, "flight-explorer")],
    ids=["trusted", "untrusted"],
)
def test_a_notebook_that_is_only_opened_shows_its_pictures(open_notebook, name, explorer):
    """As it lies in the repository: nothing has run here."""
    notebook = open_notebook(name)
    for saved in notebook.cells():
        kinds = [kind for output in saved.get("outputs", []) for kind in output.get("data", {})]
        if "image/png" in kinds:
            image = notebook.cell(saved["id"]).locator("img").last
            image.wait_for()
            assert width_of(image) > 600
    cell = notebook.cell(explorer)
    if name == UNTRUSTED:
        cell.get_by_text("run the notebook to use its sliders").wait_for()
    else:
        cell.get_by_text(NO_KERNEL).wait_for()
        cell.locator(".widget-hslider").first.wait_for()
    notebook.screenshot(f"only-opened-{explorer}")
