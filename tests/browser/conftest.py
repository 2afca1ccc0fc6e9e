"""A real JupyterLab on a copy of the notebooks, and a real browser that opens them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARTIFACTS = Path(os.environ.get("MINFER_SCREENSHOTS", ROOT / "build" / "screenshots"))
"""Where the tests leave what they saw."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTINGS = {
    # no window that asks whether to fetch news
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
TOKEN = "notebooks"
UNTRUSTED = "04_convert_and_elementwise.ipynb"


def browser_path() -> str | None:
    """The browser that is here; None: there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A running JupyterLab: (its address, the folder of notebooks that it serves)."""
    folder = tmp_path_factory.mktemp("lab")
    notebooks, settings = folder / "notebooks", folder / "settings"
    notebooks.mkdir()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(path, notebooks)
    for name, values in SETTINGS.items():
        path = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "RUNTIME", "DATA")}
    environment = {
        **os.environ,
        **places,
        "PYTHONPATH": str(ROOT),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "MINFER_MODELS": str(folder / "models"),  # the tiny model alone: the same on every machine
    }
    # as `make lab` does; one is left as a stranger would find it
    trusted = [path for path in notebooks.glob("*.ipynb") if path.name != UNTRUSTED]
    subprocess.run([sys.executable, "-m", "jupyter", "trust", *trusted], env=environment, check=True)
    log = (folder / "log.txt").open("w+")
    options = [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={notebooks}",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter", "lab", *options],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api?token={TOKEN}", server, log)
        yield address, notebooks
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)
        log.close()


def _wait_for(url, server, log):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    log.seek(0)
    pytest.fail(f"JupyterLab does not answer: {log.read()[-2000:]}")


@pytest.fixture(scope="session")
def chromium():
    """A browser. Tests that need it are skipped where there is none."""
    path = browser_path()
    if path is None:
        pytest.skip(f"no browser is here ({', '.join(BROWSERS)}): apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'minfer[test]'")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass
class NotebookPage:
    """A notebook open in JupyterLab.

    Attributes:
        page: Playwright's. path: the file that is served. errors: what the console complained of.
    """

    page: object
    path: Path
    errors: list[str] = field(default_factory=list)

    def cells(self) -> list[dict]:
        """The file's cells."""
        return json.loads(self.path.read_text())["cells"]

    def cell(self, name: str):
        """The cell with this id in the file, as it stands on the page."""
        index = next(i for i, cell in enumerate(self.cells()) if cell["id"] == name)
        cell = self.page.locator(".jp-Notebook .jp-Cell").nth(index)
        cell.scroll_into_view_if_needed()
        return cell

    def wait_for_kernel(self) -> None:
        """Wait until the kernel is there and idle: what it says earlier is lost to a page that reconnects."""
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

    def menu(self, top: str, entry: str) -> None:
        """Choose an entry of a menu."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{top}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{entry}$")).click()

    def run_all(self, seconds: int = 150) -> None:
        """Clear all outputs, Run > Run All Cells, and wait until every code cell has its number."""
        self.menu("Edit", "Clear Outputs of All Cells")
        self.menu("Run", "Run All Cells")
        last = sum(cell["cell_type"] == "code" for cell in self.cells())
        self.page.wait_for_function(
            """last => {
                const prompts = [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')]
                    .map(prompt => prompt.textContent.trim());
                const status = document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status;
                return status === 'idle' && prompts.length === last
                    && prompts.every(text => /^\\[\\d+\\]:$/.test(text));
            }""",
            arg=last,
            timeout=1000 * seconds,
        )

    def picture(self, cell) -> str:
        """The address of the cell's last picture: it holds the picture itself."""
        return cell.locator("img").last.get_attribute("src")

    def drag(self, cell, label: str, to: float) -> str:
        """Drag the handle of the slider with this label to a place on its track, 0 to 1; its number then."""
        slider = cell.locator(".widget-hslider", has=self.page.get_by_text(label, exact=True)).first
        slider.scroll_into_view_if_needed()
        track = slider.locator(".noUi-base").bounding_box()
        handle = slider.locator(".noUi-handle").bounding_box()
        x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
        target = track["x"] + to * track["width"]
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        for step in range(1, 6):
            self.page.mouse.move(x + (target - x) * step / 5, y)
        self.page.mouse.up()
        return slider.locator(".widget-readout").inner_text()

    def hurry(self, cell, label: str, *keys: str) -> None:
        """Move the slider with this label by keys, one straight after the other."""
        slider = cell.locator(".widget-hslider", has=self.page.get_by_text(label, exact=True)).first
        slider.locator(".noUi-handle").focus()
        for key in keys:
            self.page.keyboard.press(key)

    def press_at(self, cell, text: str, button: str) -> None:
        """Have the page press a button the moment the cell shows a text, for which the own click of a test
        could come too late."""
        cell.evaluate(
            """(cell, [text, title]) => new MutationObserver((_, observer) => {
                const button = cell.querySelector(`button[title="${title}"]`);
                if (cell.textContent.includes(text) && !button.disabled) {
                    observer.disconnect();
                    button.click();
                }
            }).observe(cell, {attributes: true, characterData: true, childList: true, subtree: true})""",
            [text, button],
        )

    def wait_for_other_picture(self, cell, before: str) -> None:
        """Wait until the cell's last picture is not `before`."""
        self.page.wait_for_function(
            "([cell, before]) => [...cell.querySelectorAll('img')].at(-1).src !== before",
            arg=[cell.element_handle(), before],
        )

    def wait_for_picture(self, cell, png: bytes) -> None:
        """Wait until the cell's last picture is this one."""
        self.page.wait_for_function(
            "([cell, source]) => [...cell.querySelectorAll('img')].at(-1).src === source",
            arg=[cell.element_handle(), f"data:image/png;base64,{base64.b64encode(png).decode()}"],
        )

    def save(self) -> None:
        """File > Save Notebook, and wait until the file is written."""
        before = self.path.stat().st_mtime_ns
        self.menu("File", "Save Notebook")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.1)
            if self.path.stat().st_mtime_ns != before:
                with contextlib.suppress(ValueError):  # in the middle of being written
                    self.cells()
                    return
        pytest.fail("the notebook was not saved")

    def screenshot(self, name: str) -> None:
        """Leave what is to be seen in `ARTIFACTS`."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(ARTIFACTS / f"{name}.png"))

    def output_picture(self, cell, name: str) -> None:
        """Leave the cell's output in `ARTIFACTS / "pictures"`: README shows it (`make pictures`)."""
        (ARTIFACTS / "pictures").mkdir(parents=True, exist_ok=True)
        self.page.set_viewport_size({"width": 1500, "height": 1600})  # all of it at once
        area = cell.locator(".jp-Cell-outputArea")
        area.scroll_into_view_if_needed()
        box, left = area.bounding_box(), area.locator(".jp-OutputArea-output").first.bounding_box()["x"]
        clip = {"x": left, "y": box["y"], "width": box["x"] + box["width"] - left, "height": box["height"]}
        self.page.screenshot(path=str(ARTIFACTS / "pictures" / f"{name}.png"), clip=clip)


@pytest.fixture
def open_notebook(chromium, lab):
    """Opens a notebook in a fresh browser window; the console must not have complained at the end."""
    address, folder = lab
    opened: list[NotebookPage] = []

    def open_(name: str) -> NotebookPage:
        context = chromium.new_context(viewport={"width": 1500, "height": 1100})
        page = context.new_page()
        page.set_default_timeout(90_000)  # where other tests take the machine's cores
        notebook = NotebookPage(page, folder / name)
        page.on("pageerror", lambda error: notebook.errors.append(str(error)))
        page.on("console", lambda line: notebook.errors.append(line.text) if line.type == "error" else None)
        page.goto(f"{address}/lab/workspaces/{len(opened)}-{time.monotonic_ns()}/tree/{name}?token={TOKEN}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        notebook.wait_for_kernel()
        opened.append(notebook)
        return notebook

    yield open_
    for notebook in opened:
        notebook.page.context.close()
        assert not notebook.errors, "\n".join(notebook.errors)
