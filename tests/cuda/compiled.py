"""What every shipped kernel compiles to."""

from __future__ import annotations

from minfer.cuda.kernel import Kernel
from minfer.cuda.runtime import compile_kernel
from minfer.cuda.runtime.resources import Resources


def clean(kernel: Kernel, arch: str) -> Resources:
    """Compile; fails on spills beyond what the kernel allows, stack, local memory or warnings. (Ask for the
    instructions where they matter: counting them takes as long as assembling.)"""
    compiled = compile_kernel(kernel, arch)
    resources = compiled.resources
    assert resources.spill_bytes <= kernel.allowed_spill_bytes
    assert kernel.allowed_spill_bytes or resources.stack_bytes == 0
    assert ".local" not in compiled.ptx
    assert not resources.warnings
    return resources
