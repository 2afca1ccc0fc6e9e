"""Which exceptions mean "bad input": their message is for the user, and the exit status is 2."""

from __future__ import annotations


def expected_errors() -> tuple[type[Exception], ...]:
    """The library's own errors."""
    from minfer.engine.errors import EngineError, InputError
    from minfer.model.chat import TemplateError
    from minfer.model.errors import ModelFileError

    return (ModelFileError, TemplateError, EngineError, InputError)
