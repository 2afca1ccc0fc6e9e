"""The process behind `minfer.lab.background`: one compile, as JSON from stdin to stdout."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def named(path: str) -> Any:
    """The object that "module:name" names."""
    module, name = path.split(":")
    return getattr(import_module(module), name)


def compile_described(request: dict) -> dict:
    """Compile {"factory", "type", "fields", "arch"}: registers and spill bytes, or one {"error"}."""
    from minfer.cuda.kernel import CompileError, ConfigRefused, ToolchainError
    from minfer.cuda.runtime import compile_kernel

    try:
        kernel = named(request["factory"])(named(request["type"])(**request["fields"]))
        resources = compile_kernel(kernel, request["arch"]).resources
    except (CompileError, ConfigRefused, ToolchainError) as error:
        return {"error": str(error)}
    return {"registers": resources.registers, "spill_bytes": resources.spill_bytes}


if __name__ == "__main__":
    json.dump(compile_described(json.load(sys.stdin)), sys.stdout)
