"""The arithmetic stands alone: NumPy at most, nothing of ours, no GPU."""

import pkgutil
import subprocess
import sys

import minfer.arithmetic


def test_imports_nothing_of_ours_and_no_numba():
    names = [
        f"minfer.arithmetic.{module.name}" for module in pkgutil.iter_modules(minfer.arithmetic.__path__)
    ]
    code = (
        f"import sys, {', '.join(names)}\n"
        "ours = {m.split('.')[1] for m in sys.modules if m.startswith('minfer.')}\n"
        "heavy = {'numba', 'cuda', 'matplotlib', 'scipy', 'gguf'} & set(sys.modules)\n"
        "print(sorted(ours), sorted(heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['arithmetic'] []"
