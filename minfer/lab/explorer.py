"""Sliders over a pure function: the frame that every widget of the lab shares.

An explorer is a thin view. It reads its controls, calls the function, and shows what comes back: a table
beside the controls and a picture below them. The picture is an ordinary cell output that is updated in
place, not a widget, so a saved notebook keeps the last one. What goes wrong is shown where the table was;
the picture before it stays. Controls that move quickly are followed when they rest. Controls that no kernel
answers (it was restarted, or the notebook was only opened) say so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from minfer.lab.errors import error_html, notice
from minfer.lab.picture import Picture

REST = 0.06
"""Seconds without a further change after which moved controls are followed."""
NO_KERNEL = "No kernel answers these controls: run this cell (again) to use them."


class Explorer:
    """Controls, a table and a picture over one pure function.

    Args:
        name: what it is, for the text that stands in for it where widgets cannot be shown.
        controls: keyword of `report` -> the widget that chooses it.
        report: the pure function; it gets every control's value.
        picture: draws what `report` returned.
        html: describes what `report` returned, as HTML for the panel beside the controls.
    """

    def __init__(
        self,
        name: str,
        controls: Mapping[str, widgets.Widget],
        report: Callable[..., Any],
        picture: Callable[[Any], Picture],
        html: Callable[[Any], str],
    ) -> None:
        self.name, self.controls = name, dict(controls)
        self._report, self._picture, self._html = report, picture, html
        self.report: Any = None
        self.picture: Picture | None = None
        self._handle = None
        self._setting = False
        self._pending: asyncio.TimerHandle | None = None
        # A slider and a finished compile may both ask for a refresh, from two threads.
        self._refreshing = threading.RLock()
        self.panel = widgets.HTML(layout=widgets.Layout(flex="1 1 320px", margin="0 0 0 16px"))
        left = widgets.VBox(
            [disconnected(), *self.controls.values()], layout=widgets.Layout(flex="0 1 400px")
        )
        self.box = widgets.HBox([left, self.panel], layout=widgets.Layout(flex_flow="row wrap", width="100%"))
        for control in self.controls.values():
            control.observe(self._changed, names="value")
        self.refresh()

    @property
    def values(self) -> dict[str, Any]:
        """The controls' values by keyword."""
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values: Any) -> None:
        """Move controls, as dragging them would, and show what follows at once.

        Raises:
            KeyError: no such control. traitlets.TraitError: a value that the control does not offer.
        """
        self._setting = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._setting = False
            self.refresh()

    def refresh(self) -> None:
        """Read the controls and show what follows from them; an error is shown, never raised."""
        with self._refreshing:
            self._refresh()

    def _refresh(self) -> None:
        try:
            report = self._report(**self.values)
            picture = self._picture(report)
            panel = self._html(report)
        except Exception as error:
            self.panel.value = error_html(error)
            return
        self.report, self.picture, self.panel.value = report, picture, panel
        if self._handle is not None:
            self._handle.update(picture)

    def _changed(self, _change) -> None:
        if self._setting:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.refresh()
            return
        if self._pending is not None:
            self._pending.cancel()
        self._pending = loop.call_later(REST, self.refresh)

    def _ipython_display_(self) -> None:
        bundle = self.box._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        display({**data, "text/plain": f"[{self.name}: run the notebook to use its sliders]"}, raw=True)
        if self.picture is not None:
            self._handle = display(self.picture, display_id=True)


def disconnected() -> widgets.HTML:
    """A sentence that shows by itself once no kernel stands behind the widgets: JupyterLab marks them so."""
    return widgets.HTML(
        "<style>.minfer-no-kernel{display:none}"
        ".minfer-no-kernel.jupyter-widgets-disconnected{display:block}</style>" + notice(NO_KERNEL),
    ).add_class("minfer-no-kernel")


def slider(options: list | dict[str, Any], value, description: str) -> widgets.SelectionSlider:
    """A slider over a few values (or name shown -> value), which acts when it is let go."""
    named = options if isinstance(options, dict) else {str(option): option for option in options}
    return widgets.SelectionSlider(
        options=list(named.items()),
        value=value,
        description=description,
        continuous_update=False,
        **_LOOK,
    )


def integers(low: int, high: int, value: int, description: str) -> widgets.IntSlider:
    """A slider over a range of integers, which acts when it is let go."""
    return widgets.IntSlider(
        min=low, max=high, value=value, description=description, continuous_update=False, **_LOOK
    )


def checkbox(description: str, value: bool = False) -> widgets.Checkbox:
    """A yes or no."""
    return widgets.Checkbox(value=value, description=description, **_LOOK)


def dropdown(options: dict[str, Any], value, description: str) -> widgets.Dropdown:
    """A choice among named values (name shown -> value)."""
    return widgets.Dropdown(options=list(options.items()), value=value, description=description, **_LOOK)


_LOOK = {"style": {"description_width": "110px"}, "layout": {"width": "380px"}}
