"""`minfer run`: generate text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.common import (
    Backend,
    BackendOption,
    JsonOption,
    KVType,
    KVTypeOption,
    ModelOption,
    RouteOption,
    Weights,
    WeightsOption,
    check_text,
    print_json,
    text_or_file,
)

if TYPE_CHECKING:
    from minfer.model.model import Model


def run(
    model: ModelOption,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The text to go on from.")] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file (-: stdin)."),
    ] = None,
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", min=1, help="Most tokens to generate.")
    ] = 128,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the likeliest token; same as --temp 0.")
    ] = False,
    temperature: Annotated[float, typer.Option("--temp", min=0, help="0: greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="0: off.")] = 40,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1, help="1: off.")] = 0.95,
    min_p: Annotated[float, typer.Option("--min-p", min=0, max=1, help="0: off.")] = 0.05,
    repeat_penalty: Annotated[float, typer.Option("--repeat-penalty", min=0, help="1: off.")] = 1.0,
    repeat_last_n: Annotated[
        int, typer.Option("--repeat-last-n", min=0, help="Tokens that the penalty looks back on.")
    ] = 64,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Same seed, same text [default: another each time].")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End when this text appears; may be given again.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", help="System message of the chat.")] = None,
    context: Annotated[
        int | None, typer.Option("-c", "--ctx", min=1, help="Context size [default: what the run needs].")
    ] = None,
    kv_type: KVTypeOption = KVType.f16,
    backend: BackendOption = Backend.auto,
    route: RouteOption = "auto",
    weights: WeightsOption = Weights.auto,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Generate text from a prompt, printed as it comes.

    Speeds go to stderr.
    """
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")
    text = text_or_file(prompt, file, "-p PROMPT")
    stops = [check_text(stopping, "--stop") for stopping in stop or ()]

    from minfer.engine.backend import choose_backend
    from minfer.engine.generate import generate
    from minfer.engine.progress import progress_bar
    from minfer.engine.sampling import Sampler
    from minfer.engine.session import Session
    from minfer.model.model import Model

    loaded = Model.load(model)
    tokenizer = loaded.tokenizer
    prompt_ids = _chat_ids(loaded, text, system) if chat else tokenizer.encode(text)
    sampler = Sampler(
        temperature=0.0 if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
        seed=seed,
    )
    chosen, why = choose_backend(backend.value, route, weights.value)
    needed = len(prompt_ids) + n_predict
    session = Session(
        loaded,
        chosen,
        n_ctx=context or min(needed, loaded.config.context_length),
        kv_dtype=kv_type.value,
        progress=progress_bar(),
    )
    session.warm_up()  # so that the speeds are the model's, not the compiler's
    if echo and not as_json:
        print(text, end="", flush=True)
    result = generate(
        session,
        tokenizer,
        prompt_ids,
        n_predict,
        sampler,
        stop=stops,
        on_text=None if as_json else _print_now,
    )
    if as_json:
        print_json(
            {
                "model": model,
                "backend": chosen.name,
                "prompt_tokens": result.prompt_tokens,
                "generated_tokens": result.generated_tokens,
                "ids": list(result.ids),
                "text": result.text,
                "prefill_tok_s": result.prefill_tok_s,
                "decode_tok_s": result.decode_tok_s,
            }
        )
        return
    print(flush=True)
    print(
        f"prefill {result.prompt_tokens} tokens, {_speed(result.prefill_tok_s)}; "
        f"decode {result.generated_tokens} tokens, {_speed(result.decode_tok_s)} ({why})",
        file=sys.stderr,
    )


def _chat_ids(model: Model, text: str, system: str | None) -> list[int]:
    """A user's message, and a system message before it, through the model's template."""
    from minfer.model.chat import ChatTemplate

    template = ChatTemplate.for_tokenizer(model.chat_template, model.tokenizer)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": check_text(system, "--system")})
    return template.encode(model.tokenizer, messages)


def _print_now(text: str) -> None:
    print(text, end="", flush=True)


def _speed(rate: float | None) -> str:
    return "too few to time" if rate is None else f"{rate:,.1f} tok/s"
