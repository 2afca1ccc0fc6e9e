"""The generate panel: a model, a prompt, run and stop, and the text as it comes."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets as widgets

from minfer.lab.errors import notice, sentence
from minfer.lab.explorer import disconnected
from minfer.lab.generate import BackgroundRun, Report, Request, StreamedText, available_models, run

BACKENDS = [("a GPU if there is one", "auto"), ("the GPU", "cuda"), ("the CPU", "host")]
NO_MODEL = "No model is here: run `minfer pull smollm2-135m`, or give the path of a .gguf file."
_LEAST_REFRESH_S = 0.05  # a browser shows no more than this anyway


class GeneratePanel(widgets.VBox):
    """A thin view over `minfer.lab.generate.run`.

    Args:
        models: (label, path) pairs to choose from; default: those that are here.
        prompt: the first prompt.
        run: what does the work.

    `report` holds the last run's Report, or None.
    """

    def __init__(
        self,
        models: Sequence[tuple[str, Path]] | None = None,
        prompt: str = "The capital of France is",
        run: Callable[..., Report] = run,
    ) -> None:
        models = available_models() if models is None else models
        wide = widgets.Layout(width="38em")
        style = {"description_width": "7em"}
        self.model = widgets.Dropdown(options=models, description="model", layout=wide, style=style)
        self.path = widgets.Text(
            description="or a file",
            placeholder="path of a .gguf file; it goes before the model above",
            continuous_update=False,
            layout=wide,
            style=style,
        )
        self.backend = widgets.Dropdown(options=BACKENDS, description="device", layout=wide, style=style)
        self.prompt = widgets.Textarea(
            prompt, description="prompt", rows=3, continuous_update=False, layout=wide, style=style
        )
        self.n_predict = widgets.IntSlider(
            48, 1, 512, description="tokens", continuous_update=False, layout=wide, style=style
        )
        self.temperature = widgets.FloatSlider(
            0.0,
            min=0,
            max=2,
            step=0.1,
            description="temperature",
            continuous_update=False,
            layout=wide,
            style=style,
        )
        self.chat = widgets.Checkbox(False, description="chat template", indent=False)
        self.go = widgets.Button(description="Run", button_style="primary", icon="play")
        self.halt = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.text = widgets.HTML()
        self.status = widgets.HTML()
        self.report: Report | None = None
        self._run = run
        self._background: BackgroundRun | None = None
        self.go.on_click(lambda _: self.start())
        self.halt.on_click(lambda _: self.stop())
        super().__init__(
            [
                disconnected(),
                self.model,
                self.path,
                self.backend,
                self.prompt,
                self.n_predict,
                self.temperature,
                widgets.HBox([self.go, self.halt, self.chat]),
                self.text,
                self.status,
            ]
        )
        if not models:
            self._show_error(NO_MODEL)

    def __repr__(self) -> str:
        return "GeneratePanel()"

    def start(self) -> None:
        """Run with what the controls say, unless a run is under way."""
        if self._background is not None and not self._background.wait(0):
            return
        path = Path(self.path.value.strip()).expanduser() if self.path.value.strip() else self.model.value
        if path is None:
            self._show_error(NO_MODEL)
            return
        request = Request(
            path,
            self.prompt.value,
            n_predict=self.n_predict.value,
            temperature=self.temperature.value,
            seed=time.time_ns() % 2**32,
            chat=self.chat.value,
            backend=self.backend.value,
        )
        self.go.disabled, self.halt.disabled = True, False
        self.report = None
        self._pieces = [request.prompt + ("\n\n" if request.chat else "")]
        self._shown_at = 0.0
        self.status.value = "Loading ..."
        self._show_text()
        self._background = BackgroundRun(request, self._add_text, self._show_state, self._end, self._run)

    def stop(self) -> None:
        """End the run after the token that it is at."""
        if self._background is not None:
            self._background.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run to end; False when `timeout` seconds were not enough."""
        return self._background is None or self._background.wait(timeout)

    def _add_text(self, piece: str) -> None:
        self._pieces.append(piece)
        if time.monotonic() - self._shown_at >= _LEAST_REFRESH_S:
            self._shown_at = time.monotonic()
            self.status.value = "Running ..."
            self._show_text()

    def _show_state(self, state: str) -> None:
        if time.monotonic() - self._shown_at >= _LEAST_REFRESH_S:
            self._shown_at = time.monotonic()
            self.status.value = state

    def _end(self, outcome: Report | Exception) -> None:
        self._show_text()
        if isinstance(outcome, Exception):
            self._show_error(sentence(outcome))
        else:
            self.report = outcome
            self.status.value = html.escape(outcome.summary())
        self.go.disabled, self.halt.disabled = False, True

    def _show_text(self) -> None:
        self.text.value = StreamedText(self._pieces)._repr_html_()

    def _show_error(self, sentence: str) -> None:
        self.status.value = notice(html.escape(sentence))
