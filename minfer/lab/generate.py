"""Generating text in a notebook: the models that are here, a run to watch and stop, its speed."""

from __future__ import annotations

import contextlib
import html
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from minfer.lab.errors import EXPECTED, notice, sentence

if TYPE_CHECKING:
    from minfer.model.model import Model

TINY = Path(__file__).resolve().parents[2] / "data" / "qwen2-tiny.gguf"
"""A model with random weights that comes with the repository, for when nothing has been pulled."""

FIRST_MODEL = "MINFER_MODEL"
"""Environment variable: the pulled model that the notebooks take, where there are several."""

ONE_AT_A_TIME = threading.Lock()  # the host backend's threads serve one caller


def available_models() -> list[tuple[str, Path]]:
    """(label, path) of every model that can run now: the pulled ones, the tiny one of the repository, then
    what `minfer synth` made.

    The name in `$MINFER_MODEL`, if it has been pulled, comes first.
    """
    from minfer.model.errors import ModelFileError
    from minfer.model.registry import NAMES, SYNTHETIC, models_dir, resolve

    found = []
    for name in sorted(NAMES, key=lambda name: name != os.environ.get(FIRST_MODEL)):
        try:
            found.append((name, resolve(name)))
        except ModelFileError:
            continue
    if TINY.is_file():
        found.append(("qwen2-tiny (random weights)", TINY))
    with contextlib.suppress(ModelFileError):  # no folder of models
        made = sorted(models_dir().glob(f"*{SYNTHETIC}.gguf"))
        found += [(f"{path.stem} (random weights)", path) for path in made]
    return found


@dataclass(frozen=True)
class Request:
    """What to generate. `temperature` 0 is greedy; `chat` puts the prompt through the model's template."""

    model: Path
    prompt: str
    n_predict: int = 48
    temperature: float = 0.0
    seed: int = 0
    chat: bool = False
    backend: str = "auto"


@dataclass(frozen=True)
class Report:
    """What came of a request.

    Times in seconds; `weights_bytes` is what one decoded token reads at least; `arrivals` are the times, from
    the start of the prefill, at which pieces of text came out. `error`: why nothing came of it.
    """

    text: str
    ids: tuple[int, ...]
    prompt_tokens: int
    prefill_s: float
    decode_s: float
    stop_reason: str
    backend: str
    weights_bytes: int
    arrivals: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def failed(cls, error: Exception) -> Report:
        """The report of a run that ended with an exception."""
        return cls("", (), 0, 0.0, 0.0, "error", "none", 0, error=sentence(error))

    @property
    def decoded_tokens(self) -> int:
        """Tokens of the decode phase; the first generated token comes out of the prefill."""
        return max(0, len(self.ids) - 1)

    def rows(self) -> list[tuple[str, int, float, float | None]]:
        """(phase, tokens, seconds, tokens a second) of prefill and decode."""
        return [
            (phase, tokens, seconds, tokens / seconds if tokens and seconds > 0 else None)
            for phase, tokens, seconds in (
                ("prefill", self.prompt_tokens, self.prefill_s),
                ("decode", self.decoded_tokens, self.decode_s),
            )
        ]

    def decode_bandwidth(self) -> float | None:
        """Bytes of weights read a second while decoding, or None when nothing was decoded."""
        rate = self.rows()[1][3]
        return None if rate is None else rate * self.weights_bytes

    def summary(self) -> str:
        """One line: both speeds, and where it ran."""
        if self.error is not None:
            return self.error
        speeds = ", ".join(
            f"{phase} {tokens} tokens: {f'{rate:,.1f} tok/s' if rate else 'too few to time'}"
            for phase, tokens, _, rate in self.rows()
        )
        return f"{speeds} ({self.backend}, {self.stop_reason})"

    def bandwidth_sentence(self) -> str:
        """`decode_bandwidth` in words."""
        rate = self.decode_bandwidth()
        return "nothing was decoded" if rate is None else f"{rate / 1e9:.2f} GB/s of weights while decoding"

    def _repr_html_(self) -> str:
        if self.error is not None:
            return notice(html.escape(self.error))
        body = "".join(
            f"<tr><td>{phase}</td><td>{tokens}</td><td>{seconds:.3f}</td><td>{rate or 0:,.1f}</td></tr>"
            for phase, tokens, seconds, rate in self.rows()
        )
        return (
            "<table><tr><th>phase</th><th>tokens</th><th>seconds</th><th>tokens a second</th></tr>"
            f"{body}</table><p>{html.escape(self.backend)}; ended by: {html.escape(self.stop_reason)}</p>"
        )


@lru_cache(maxsize=2)
def load(path: Path) -> Model:
    """An opened model; the last two stay open."""
    from minfer.model.model import Model

    return Model.load(path)


def run(
    request: Request,
    on_text: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_state: Callable[[str], None] | None = None,
) -> Report:
    """Prefill the prompt and decode, handing on text as it comes; `cancelled` is asked between tokens;
    `on_state` is told, in words, what the opening of the model has come to.

    Raises:
        ModelFileError, InputError, EngineError, TemplateError: as the engine and the model files do.
    """
    from minfer.engine.backend import choose_backend
    from minfer.engine.generate import generate
    from minfer.engine.sampling import Sampler
    from minfer.engine.session import Session
    from minfer.model.chat import ChatTemplate

    with ONE_AT_A_TIME:
        model = load(request.model)
        tokenizer = model.tokenizer
        if request.chat:
            template = ChatTemplate.for_tokenizer(model.chat_template, tokenizer)
            prompt_ids = template.encode(tokenizer, [{"role": "user", "content": request.prompt}])
        else:
            prompt_ids = tokenizer.encode(request.prompt)
        backend, why = choose_backend(request.backend, on_plan=lambda line: None)
        session = Session(
            model,
            backend,
            n_ctx=min(len(prompt_ids) + request.n_predict, model.config.context_length),
            progress=None if on_state is None else lambda *step: on_state(opening(*step)),
        )
        session.warm_up()
        arrivals: list[float] = []
        began = time.perf_counter()

        def arrived(text: str) -> None:
            arrivals.append(time.perf_counter() - began)
            if on_text is not None:
                on_text(text)

        result = generate(
            session,
            tokenizer,
            prompt_ids,
            request.n_predict,
            Sampler(temperature=request.temperature, seed=request.seed),
            on_text=arrived,
            cancelled=cancelled,
        )
    return Report(
        text=result.text,
        ids=tuple(result.ids),
        prompt_tokens=result.prompt_tokens,
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
        stop_reason=result.stop_reason,
        backend=why,
        weights_bytes=weight_bytes(model),
        arrivals=tuple(arrivals),
    )


def opening(step: str, done: int, total: int) -> str:
    """What `minfer.engine.backend.Progress` is told, in words."""
    if step == "compiling":
        return f"Compiling kernels, which are kept for the next time: {done} of {total} ..."
    return f"Loading weights: {done / total:.0%} ..."


def weight_bytes(model: Model) -> int:
    """Bytes of weights that one decoded token reads: all but the embedding table, of which it reads one row.

    A tied output projection is the embedding table, so then that counts.
    """
    skipped = {model.embedding} - {model.output}
    return sum(tensor.nbytes for name, tensor in model.file.tensors.items() if name not in skipped)


def stream(request: Request) -> Report:
    """Run a request in the cell: the prompt, then the text as it comes.

    What goes wrong (a model path that is none, a GPU without room) becomes the report's `error`, so that the
    notebook goes on.
    """
    from IPython.display import display

    pieces = [request.prompt]
    shown = display(StreamedText(pieces), display_id=True)

    def show(pieces: Sequence[str]) -> None:
        if shown is not None:  # outside of a notebook nothing can be updated
            shown.update(StreamedText(pieces))

    def add(text: str) -> None:
        pieces.append(text)
        show(pieces)

    try:
        return run(request, on_text=add, on_state=lambda state: show([request.prompt, f"\n\n{state}"]))
    except EXPECTED as error:
        return Report.failed(error)


class StreamedText:
    """A prompt and what was generated so far, as a notebook shows it."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.prompt, self.generated = pieces[0], "".join(pieces[1:])

    def __repr__(self) -> str:
        return self.prompt + self.generated

    def _repr_html_(self) -> str:
        return (
            '<pre style="white-space: pre-wrap; line-height: 1.35; max-width: 60em">'
            f"<b>{html.escape(self.prompt)}</b>{html.escape(self.generated)}</pre>"
        )


class BackgroundRun:
    """One request in a thread of its own, so that the notebook stays alive and can stop it.

    Args:
        request: what to generate.
        on_text: called with each piece of text.
        on_state: called with what the opening of the model has come to.
        on_end: called once, with the Report, or with the exception that ended the run.
        run: what does the work.
    """

    def __init__(
        self,
        request: Request,
        on_text: Callable[[str], None],
        on_state: Callable[[str], None],
        on_end: Callable[[Report | Exception], None],
        run: Callable[..., Report] = run,
    ) -> None:
        self._stop = threading.Event()
        self._work = (run, request, on_text, on_state, on_end)
        self._thread = threading.Thread(target=self._run, name="minfer generate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end after the token that it is at."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; False when `timeout` seconds were not enough."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        run, request, on_text, on_state, on_end = self._work
        try:
            outcome: Report | Exception = run(
                request, on_text=on_text, cancelled=self._stop.is_set, on_state=on_state
            )
        except Exception as error:  # shown to the person who pressed the button
            outcome = error
        on_end(outcome)
