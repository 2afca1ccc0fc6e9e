"""Every shipped kernel, small and ragged, in checked mode: poisoned outputs, all written, right, twice the
same."""

from __future__ import annotations

import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from tests.gpu.small_cases import small_cases, small_sequences


@pytest.mark.parametrize("sequence", list(small_sequences()), ids=lambda cases: str(cases[-1]))
def test_small_case(sequence):
    if reason := sequence[-1].kernel.not_applicable(runtime.device().arch):
        pytest.skip(f"it {reason}")
    runtime.reset_launch_counts()
    with runtime.checked():
        for case in sequence:
            case.run_on_gpu()
    for case in sequence:
        assert runtime.launch_counts()[(case.kernel.name, str(case.kernel.config))] >= 2


def test_which_kernels_have_no_small_case(measure):
    missing = sorted(set(shipped_kernels()) - {case.kernel.name for case in small_cases()})
    measure("shipped kernels without a small case", missing)
