"""What arrays of the device do, whichever device it is."""

from __future__ import annotations

import numpy as np

from minfer.cuda import runtime


def check_views_share_memory() -> None:
    """Rows, shapes and dtypes of an array are views of it."""
    host = np.arange(24, dtype=np.uint32).reshape(4, 6)
    array = runtime.to_device(host)
    np.testing.assert_array_equal(array[1:3].to_host(), host[1:3])
    np.testing.assert_array_equal(array[-1].to_host(), host[-1])
    np.testing.assert_array_equal(array.reshape(3, -1).to_host(), host.reshape(3, 8))
    np.testing.assert_array_equal(array.view(np.uint8).to_host(), host.view(np.uint8))
    array[2].copy_from(np.zeros(6, np.uint32))
    assert array.to_host()[2].sum() == 0
    assert len(array) == 4 and array.size == 24 and array.ndim == 2
