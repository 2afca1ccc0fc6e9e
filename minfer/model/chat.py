"""Chat templates: a conversation becomes the prompt that the model was trained on.

The template is a Jinja program that comes with the model file, so it runs in jinja2's sandbox, with the few
names that Hugging Face templates expect.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minfer.model.tokenizer import Tokenizer

Message = Mapping[str, Any]
RENDER_LIMIT_S = 10.0
"""A template that runs longer than this is given up: it is a program that anyone may have written."""
_MOST_OF_A_POWER = 10_000
_MOST_REPEATED = 10_000_000


class TemplateError(ValueError):
    """A chat template that is missing, does not parse, or raises; the message is one line."""


class ChatTemplate:
    """A parsed template.

    Args:
        template: Jinja source, `tokenizer.chat_template` of a model file.
        bos, eos: text of the begin- and end-of-sequence tokens, which templates may print.

    Raises:
        TemplateError: the source does not parse.
    """

    def __init__(self, template: str, bos: str = "", eos: str = "") -> None:
        self._names = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = _environment().from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template does not parse: line {error.lineno}: {_one_line(error)}"
            ) from None
        except (TypeError, RecursionError) as error:
            raise TemplateError(f"the model's chat template does not parse: {_one_line(error)}") from None

    @classmethod
    def for_tokenizer(cls, template: str | None, tokenizer: Tokenizer) -> ChatTemplate:
        """The template with the BOS and EOS texts of a tokenizer; None (a model without one) is an error."""
        if template is None:
            raise TemplateError("the model has no chat template (no tokenizer.chat_template in its file)")
        bos, eos = (
            "" if token_id is None else tokenizer.decode([token_id])
            for token_id in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return cls(template, bos, eos)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation.

        Args:
            messages: dicts with "role" ("system", "user", "assistant") and "content".
            add_generation_prompt: end with the opening of the assistant's turn.

        Raises:
            TemplateError: the template raises, or asks for something that the sandbox forbids.
        """
        try:
            with _time_limit(RENDER_LIMIT_S):
                text = self._template.render(
                    messages=list(messages), add_generation_prompt=add_generation_prompt, **self._names
                )
            text.encode("utf-8")  # a lone surrogate would fail later, in the tokenizer
            return text
        except Exception as error:  # the template is a program: it can raise anything
            name = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
            raise TemplateError(f"the model's chat template raises: {name}{_one_line(error)}") from None

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
        """Token ids of the rendered prompt, with a single BOS when the tokenizer adds one."""
        ids = tokenizer.encode(self.render(messages), add_special=False)
        if tokenizer.add_bos and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise in this thread's Python code once the time is up."""
    end = time.monotonic() + seconds

    def check(frame: Any, event: str, argument: Any) -> Callable[..., Any]:
        if time.monotonic() > end:
            raise jinja2.TemplateError(f"it has not ended after {seconds:g} s")
        return check

    before = sys.gettrace()
    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which one operator cannot take all time or memory either.

    The time limit does not reach into the interpreter's own arithmetic: 9 ** 9 ** 9 would never come back.
    """

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for value, other in ((left, right), (right, left)):
            if operator == "**" and isinstance(value, int) and abs(value) > _MOST_OF_A_POWER:
                raise jinja2.TemplateError(f"a power of {left} to {right} is out of proportion")
            if hasattr(value, "__len__") and isinstance(other, int) and len(value) * other > _MOST_REPEATED:
                raise jinja2.TemplateError(f"a text or list repeated to {len(value) * other} items")
        return super().call_binop(context, operator, left, right)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    # Not jinja2's own filter, which escapes HTML characters.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
