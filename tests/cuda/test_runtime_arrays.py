"""Device arrays and tensor maps against a fake driver."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from tests.cuda.array_cases import check_views_share_memory


class TestArrays:
    def test_out_of_memory_says_how_much_there_is(self, fake):
        fake.memory_left = 1000
        message = r"NVIDIA H200 has 1,000 of 137,438,953,472 bytes free, 4,000 were asked for"
        with pytest.raises(MemoryError, match=message):
            runtime.empty(1000, np.float32)

    def test_views_share_memory(self, fake):
        check_views_share_memory()

    def test_views_that_do_not_fit(self, fake):
        array = runtime.empty((4, 6), np.uint32)
        for wrong in (
            lambda: array.reshape(5, -1),
            lambda: array.reshape(23),
            lambda: array.reshape(-4, -6),
            lambda: runtime.empty(6, np.uint8).view(np.uint32),
            lambda: runtime.empty(9, np.uint8)[1:].view(np.uint32),
            lambda: runtime.empty((4, -1), np.uint32),
            lambda: array.fill_bytes(256),
        ):
            with pytest.raises(ValueError):
                wrong()
        for wrong in (
            lambda: array.reshape(2.0, 12),
            lambda: array.view("S5"),
            lambda: array.view(object),
            lambda: array[1.0],
            lambda: runtime.empty((2.5,), np.uint32),
            lambda: runtime.empty("4", np.uint32),
            lambda: runtime.empty(4, np.longdouble),
            lambda: runtime.empty(4, ">u4"),
            lambda: runtime.to_device([1, 2]),
        ):
            with pytest.raises(TypeError):
                wrong()
        for wrong in (lambda: array[4], lambda: array[::2], lambda: array.reshape(1, 24)[0][0][0]):
            with pytest.raises(IndexError):
                wrong()
        with pytest.raises(ValueError, match="cannot copy"):
            array.copy_from(np.zeros((4, 5), np.uint32))

    def test_memory_is_freed_with_the_last_view(self, fake):
        array = runtime.empty(4, np.uint8)
        view = array[1:]
        del array
        assert not fake.named("cuMemFree")
        del view
        assert len(fake.named("cuMemFree")) == 1


class TestTensorMaps:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "float32"}, "a tensor map of float32 over an array of float16"),
            ({"dtype": "float64"}, "tensor maps of float64: use one of uint8"),
            ({"row_bytes": 64}, "rows 64 bytes apart overlap: a row of the array has 128 bytes"),
            ({"promotion": 100}, "a promotion of 100 bytes"),
        ],
    )
    def test_refused_options(self, fake, options, message):
        array = runtime.DeviceArray(None, 4096, (64, 64), np.dtype(np.float16))
        with pytest.raises(ValueError, match=message):
            runtime.tensor_map(array, 64, **options)
