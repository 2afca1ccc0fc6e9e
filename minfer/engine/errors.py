"""Errors of the engine that a user may see: each message is one sentence with the number and the remedy."""

from __future__ import annotations

from minfer.arithmetic.counts import is_whole

NOT_NUMBERS = "the model's logits are not numbers: its file is damaged or its values overflow"


class EngineError(RuntimeError):
    """The engine cannot do what was asked here (no GPU, not enough memory, unsupported weights)."""


class InputError(ValueError):
    """The request itself is wrong: empty prompt, token id out of range, context overflow, bad sampling
    setting.
    """


def check_whole(**values: object) -> None:
    """Refuse (InputError) what is no whole number (16.0 is none)."""
    for name, value in values.items():
        if not is_whole(value):
            raise InputError(f"{name} is {value!r}: it must be a whole number")
