"""The convert kernels on a GPU, over the issue's shapes."""

import pytest

from tests.cuda.convert_cases import convert_case, store_kv_case

NT = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512, 2048)


@pytest.mark.parametrize("vector", [1, 8])
@pytest.mark.parametrize("n", [*NT, 3584 * 2048 + 5])
def test_convert(n, vector):
    convert_case(n, vector, threads=256).run_on_gpu()


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("width", [512, 128, 6, 130, 1])
@pytest.mark.parametrize("nt", NT)
def test_store_kv(nt, width, vector):
    store_kv_case(nt, width, vector, threads=128).run_on_gpu()
