"""What a `Kernel` refuses when it is built."""

import pytest

from minfer.cuda.kernel import ConfigRefused, Kernel, grid_shape


def kernel(**changes):
    fields = {
        "name": "scale",
        "config": "tile=64",
        "function": lambda: None,
        "signature": lambda: None,
        "threads": 128,
        "shared_bytes": 0,
        "arguments": (),
    }
    return Kernel(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 0}, "0 threads a block; CUDA allows 1 to 1024"),
        ({"threads": 1025}, "1025 threads a block"),
        ({"shared_bytes": -1}, "-1 bytes of shared memory"),
        ({"min_blocks": 0}, "at least 0 blocks of 128 threads"),
        ({"min_blocks": 17}, "at least 17 blocks of 128 threads an SM; an SM holds 1 to 16"),
        ({"threads": 32, "min_blocks": 33}, "an SM holds 1 to 32"),
        ({"max_registers": 0}, "max_registers 0"),
        ({"max_registers": 256}, "max_registers 256; a thread has 1 to 255"),
        ({"cluster": 2}, "clusters need sm_90"),
        ({"cluster": 17, "min_arch": 90}, "clusters of 17 blocks"),
    ],
)
def test_kernels_that_cannot_run_are_refused(changes, message):
    with pytest.raises(ConfigRefused, match=message) as refused:
        kernel(**changes)
    assert str(refused.value).startswith("scale [tile=64]: ")


def test_the_limits_themselves_are_legal():
    kernel(threads=1024, min_blocks=2)
    kernel(threads=64, min_blocks=32, cluster=16, min_arch=90)
    kernel(max_registers=255)


def test_grid_shapes():
    assert (
        grid_shape(3) == (3, 1, 1) and grid_shape((3, 4)) == (3, 4, 1) and grid_shape([3, 4, 5]) == (3, 4, 5)
    )
    for wrong in (1.5, (2.0, 1), "12", None, (), (1, 1, 1, 1)):
        with pytest.raises((TypeError, ValueError), match="one to three whole numbers of blocks"):
            grid_shape(wrong)
