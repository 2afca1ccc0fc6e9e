"""The errors that this package raises; each message is one line and names the file and the field."""


class ModelFileError(ValueError):
    """A model file that cannot be used: what is wrong, in which file and field, and what is supported."""


class PullError(ModelFileError):
    """A model that could not be fetched. Nothing unfinished is left under the model's own name."""
