"""minfer: a Jupyter research workbench for people who write GPU kernels for LLM inference."""

__version__ = "0.1.0"
