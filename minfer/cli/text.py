"""`minfer tokenize`."""

from __future__ import annotations

from typing import Annotated

import typer

from minfer.cli.common import JsonOption, ModelOption, print_json, text_or_file


def tokenize(
    model: ModelOption,
    text: Annotated[str | None, typer.Argument(help="The text to tokenize.", show_default=False)] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the text from a file (-: stdin).")
    ] = None,
    special: Annotated[
        bool, typer.Option(help="Take control tokens such as <|im_start|> in the text for what they are.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Print the token ids of a text, and the text of each."""
    from minfer.model.gguf_file import GGUFFile
    from minfer.model.registry import resolve
    from minfer.model.tokenizer import Tokenizer

    content = text_or_file(text, file, "TEXT")
    tokenizer = Tokenizer.from_file(GGUFFile.open(resolve(model)))
    ids = tokenizer.encode(content, parse_special=special)
    if as_json:
        print_json({"model": model, "n_tokens": len(ids), "ids": ids})
        return
    for token_id in ids:
        print(f"{token_id:>8}  {tokenizer.decode([token_id])!r}")
    print(f"{len(ids)} tokens")
