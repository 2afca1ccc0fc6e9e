"""The convert kernels in the simulator: every variant, ragged sizes, poisoned outputs, exact buffers."""

import pytest

from tests.cuda.convert_cases import convert_case, store_kv_case


@pytest.mark.parametrize("vector", [1, 8])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 63, 65, 521])
def test_convert(n, vector):
    convert_case(n, vector, threads=32).run_simulated()


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize(("nt", "width"), [(1, 1), (2, 3), (3, 6), (3, 128), (2, 130), (5, 64)])
def test_store_kv(nt, width, vector):
    store_kv_case(nt, width, vector).run_simulated()
