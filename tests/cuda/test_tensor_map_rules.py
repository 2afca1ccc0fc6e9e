"""What tensor maps may be, asked of the rules and of both that make them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.cuda import runtime, simulator
from minfer.cuda.tensor_map_rules import ELEMENT_BYTES, SWIZZLES, check_tensor_map, widest_box_row

SOUND = {
    "dtype": "float16",
    "address": 4096,
    "shape": (64, 64),
    "strides": (128, 2),
    "box": (64, 64),
    "swizzle": 128,
}


def refusal(call, *args, **options) -> str | None:
    """The words in which a call refuses; None: it does not."""
    try:
        call(*args, **options)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float64"}, "tensor maps of float64: use one of uint8, int8, "),
        ({"shape": (64, 64, 2)}, "2 axes, the array has 3"),
        ({"shape": (64,)}, "2 axes, the array has 1"),
        ({"shape": (0, 64)}, "is empty"),
        ({"address": 4104}, "starts at 0x1008: a tensor map needs 16-byte alignment"),
        ({"strides": (2, 128)}, "columns 128 bytes apart"),
        ({"strides": (64, 2)}, "rows 64 bytes apart overlap: a row of the array has 128 bytes"),
        ({"strides": (-128, 2)}, "rows -128 bytes apart overlap"),
        (
            {"shape": (64, 60), "strides": (120, 2)},
            "rows 120 bytes apart: a tensor map needs a multiple of 16",
        ),
        ({"swizzle": 96}, "a swizzle of 96 bytes: 0, 32, 64, 128 exist"),
        ({"box": (257, 64)}, "a box of 257 x 64: each side is 1 to 256"),
        ({"box": (64, 0)}, "a box of 64 x 0"),
        ({"box": (64.0, 64)}, "a box of 64.0 x 64"),
        ({"box": (64, 4)}, "box rows of 8 bytes: a tensor map needs a multiple of 16"),
        ({"box": (64, 128)}, "box rows of 256 bytes do not fit the 128-byte swizzle"),
    ],
)
def test_refusals(change, message):
    check_tensor_map(**SOUND)
    with pytest.raises(ValueError, match=message):
        check_tensor_map(**SOUND | change)


near = st.sampled_from
"""Values on both sides of a limit."""


@given(
    dtype=near(sorted(ELEMENT_BYTES)),
    address=near([0, 8, 16, 4096, 4100]),
    shape=st.tuples(near([0, 1, 9]), near([0, 1, 7, 8, 16, 64])),
    stride=near([-64, 0, 8, 16, 32, 60, 64, 256]),
    box=st.tuples(near([-1, 0, 1, 256, 257]), near([0, 1, 3, 4, 8, 16, 32, 64, 128, 256, 257])),
    swizzle=near([0, 16, 32, 64, 128, 256]),
)
@settings(max_examples=500)
def test_accepted_is_what_cutensormapencodetiled_documents(dtype, address, shape, stride, box, swizzle):
    size = ELEMENT_BYTES[dtype]
    inner = box[1] * size
    sound = (
        address % 16 == 0
        and shape[0] >= 1
        and shape[1] >= 1
        and stride >= shape[1] * size
        and stride % 16 == 0
        and 1 <= box[0] <= 256
        and 1 <= box[1] <= 256
        and inner % 16 == 0
        and (swizzle == 0 or (swizzle in (32, 64, 128) and inner <= swizzle))
    )
    assert (refusal(check_tensor_map, dtype, address, shape, (stride, size), box, swizzle) is None) == sound


@given(dtype=near(sorted(ELEMENT_BYTES)), swizzle=near(SWIZZLES))
def test_the_widest_box_row_is_accepted_and_a_wider_one_is_not(dtype, swizzle):
    columns, size = widest_box_row(dtype, swizzle), ELEMENT_BYTES[dtype]
    layout = dtype, 0, (8, 512), (512 * size, size)
    check_tensor_map(*layout, (8, columns), swizzle)
    if swizzle:
        assert "do not fit" in refusal(check_tensor_map, *layout, (8, columns + 16 // size), swizzle)


@given(
    dtype=near(["uint8", "int32", "float16", "float32", "float64"]),
    shape=st.lists(near([0, 1, 3, 16, 40]), max_size=3).map(tuple),
    box=st.tuples(near([1, 16, 256, 257]), st.none() | near([1, 4, 16, 64])),
    swizzle=near([0, 48, 32, 128]),
)
@settings(max_examples=200)
def test_gpu_and_simulator_refuse_the_same_in_the_same_words(fake, dtype, shape, box, swizzle):
    here = np.zeros(shape, dtype)
    there = runtime.DeviceArray(None, 4096, shape, here.dtype)
    said = refusal(simulator.tensor_map, here, *box, swizzle)
    assert said == refusal(runtime.tensor_map, there, *box, swizzle)
    if said is None:
        assert simulator.tensor_map(here, *box, swizzle).box_bytes <= 256 * 256 * 4


def test_what_the_driver_is_told(fake):
    array = runtime.DeviceArray(None, 4096, (40, 64), np.dtype(np.uint16))
    runtime.tensor_map(array, 16, swizzle=64, dtype="bfloat16", row_bytes=256, promotion=128)
    kind, axes, address, sizes, strides, box, steps, _, swizzle, promotion, _ = fake.named(
        "cuTensorMapEncodeTiled"
    )[0]
    assert (kind.name, swizzle.name, promotion.name) == (
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
        "CU_TENSOR_MAP_SWIZZLE_64B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
    )
    assert (axes, address) == (2, 4096)
    assert [[int(n) for n in numbers] for numbers in (sizes, strides, box, steps)] == [
        [64, 40],
        [256],
        [32, 16],
        [1, 1],
    ]


def test_the_simulator_takes_views_as_the_gpu_takes_addresses():
    whole = np.zeros((16, 80), np.int32)
    assert simulator.tensor_map(whole[:, 16:48], 16, 32).array.strides == (320, 4)
    with pytest.raises(ValueError, match="starts at 0x4: a tensor map needs 16-byte alignment"):
        simulator.tensor_map(whole[:, 1:33], 16, 32)
    with pytest.raises(ValueError, match="columns 320 bytes apart"):
        simulator.tensor_map(whole.T, 16, 32)
    with pytest.raises(TypeError, match="other byte order"):
        simulator.tensor_map(whole.astype(">i4"), 16, 32)
    with pytest.raises(TypeError, match="not of list"):
        simulator.TensorMap([], 16, 32, 128)


@pytest.mark.parametrize(
    ("columns", "swizzle", "promotion"),
    [(64, 128, "L2_128B"), (32, 64, "L2_64B"), (16, 32, "L2_64B"), (128, 0, "L2_256B"), (256, 0, "L2_256B")],
)
def test_l2_fetches_what_a_row_of_a_box_needs(fake, columns, swizzle, promotion):
    array = runtime.DeviceArray(None, 4096, (40, 256), np.dtype(np.float16))
    runtime.tensor_map(array, 16, columns, swizzle)
    told = fake.named("cuTensorMapEncodeTiled")[0]
    assert told[9].name == f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"
