"""The errors that this package raises; each message is one line and names the file and the field."""

from __future__ import annotations

import os


class ModelFileError(ValueError):
    """A model file that cannot be used: what is wrong, in which file and field, and what is supported."""

    def within(self, path: str | os.PathLike[str]) -> ModelFileError:
        """The same error with the file's name in front of its message, once."""
        message = str(self)
        return self if message.startswith(f"{path}: ") else type(self)(f"{path}: {message}")


class PullError(ModelFileError):
    """A model that could not be fetched. Nothing unfinished is left under the model's own name."""
