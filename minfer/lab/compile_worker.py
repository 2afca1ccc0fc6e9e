"""The process behind `minfer.lab.background`: one compile, as JSON from stdin to stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from typing import Any


def named(path: str) -> Any:
    """The object that "module:name" names."""
    module, name = path.split(":")
    return getattr(import_module(module), name)


def compile_described(request: dict) -> dict:
    """Compile {"factory", "type", "fields", "arch"}: registers and spill bytes, or one {"error"}.

    With "listing" true, the kernel's code by line too (`minfer.lab.kernel_code`)."""
    from minfer.cuda.kernel import CompileError, ConfigRefused, ToolchainError
    from minfer.cuda.runtime import compile_kernel
    from minfer.lab.kernel_code import listing

    try:
        kernel = named(request["factory"])(named(request["type"])(**request["fields"]))
        compiled = compile_kernel(kernel, request["arch"], lineinfo=bool(request.get("listing")))
    except (CompileError, ConfigRefused, ToolchainError) as error:
        return {"error": str(error)}
    code = asdict(listing(compiled)) if request.get("listing") else None
    resources = compiled.resources
    return {"registers": resources.registers, "spill_bytes": resources.spill_bytes, "listing": code}


if __name__ == "__main__":
    json.dump(compile_described(json.load(sys.stdin)), sys.stdout)
