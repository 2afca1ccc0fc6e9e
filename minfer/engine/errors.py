"""Errors of the engine that a user may see: each message is one sentence with the number and the remedy."""

from __future__ import annotations


class EngineError(RuntimeError):
    """The engine cannot do what was asked here (no GPU, not enough memory, unsupported weights)."""


class InputError(ValueError):
    """The request itself is wrong: empty prompt, token id out of range, context overflow, bad sampling
    setting.
    """
