"""`python -m minfer.cuda.runtime`: the GPU and the toolchain that minfer would use, or what is missing."""

from __future__ import annotations

import sys

from minfer.cuda.kernel import NoDevice, ToolchainError
from minfer.cuda.runtime import device
from minfer.cuda.runtime.toolchain import compiler_versions


def main() -> int:
    """0 and one line each; 2 and one sentence where something is missing."""
    try:
        gpu = device()
        versions = compiler_versions()
    except (NoDevice, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 2
    print(gpu)
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
