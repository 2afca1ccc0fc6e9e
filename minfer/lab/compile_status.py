"""How a compile behind a slider stands: a sentence, a bar that moves meanwhile, and a way to give it up."""

from __future__ import annotations

from html import escape

import ipywidgets

from minfer.lab.background import BackgroundCompiler, Compilation


class CompileStatus(ipywidgets.VBox):
    """A thin view of a compiler's `Compilation`s."""

    def __init__(self, compiler: BackgroundCompiler) -> None:
        self.text = ipywidgets.HTML()
        self.cancel = ipywidgets.Button(description="Cancel compile", layout={"display": "none"})
        self.cancel.on_click(lambda _: compiler.cancel())
        super().__init__([self.text, self.cancel])

    def show(self, compilation: Compilation | None) -> None:
        """Show this one; None: there is nothing to compile."""
        busy = compilation is not None and compilation.state in ("waiting", "compiling")
        bar = '<progress style="width:8em;vertical-align:middle"></progress> ' if busy else ""
        self.text.value = "" if compilation is None else f"<small>{bar}{escape(str(compilation))}</small>"
        self.cancel.layout.display = "" if busy else "none"
