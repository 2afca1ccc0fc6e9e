"""`import minfer` is fast and pulls in neither numba nor a GPU."""

import subprocess
import sys


def test_import_pulls_in_no_heavy_package():
    code = (
        "import sys, minfer; print([m for m in ('numba', 'numpy', 'cuda', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
