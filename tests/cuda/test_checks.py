"""Sizes and config fields of a wrong type or range are refused alike by every kernel."""

import re
from dataclasses import fields, replace

import pytest

from minfer.cuda.attention import AttentionConfig
from minfer.cuda.convert import ConvertConfig
from minfer.cuda.dequantize import DequantizeConfig
from minfer.cuda.elementwise import RmsNormConfig
from minfer.cuda.gemm import GemmConfig
from minfer.cuda.gemm_hopper import GemmHopperConfig
from minfer.cuda.gemv import GemvConfig
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.mmq.variants import narrow
from minfer.cuda.quantize import MAX_CHUNKS, DequantizePad40Config, QuantizePad40Config
from minfer.cuda.registry import all_kernels
from minfer.cuda.w4a8 import W4A8Config
from minfer.cuda.w4a16 import W4A16Config

#: Families of products, with sizes that each computes.
PRODUCTS = {
    "gemm": (GemmConfig(), (1, 8, 8)),
    "gemm_hopper": (GemmHopperConfig(), (1, 8, 8)),
    "mmq": (narrow(), (1, 8, 256)),
    "w4a16": (W4A16Config(), (1, 8, 256, 8)),
    "w4a8": (W4A8Config(), (1, 8, 512, 8)),
}
WRONG_TYPES = (1.5, 64.0, "64", None, True, 64, [1], b"x", float("nan"))
NUMBERS = (-(2**40), -1, 0, 1, 7, 2**31 - 1, 2**31, 2**40)


@pytest.mark.parametrize("family", PRODUCTS)
def test_products_of_sizes_that_are_none_are_refused(family):
    config, sizes = PRODUCTS[family]
    config.check(*sizes)
    for place, name in zip(range(len(sizes)), ("nt", "od", "id", "width"), strict=False):
        for wrong, message in (
            (0, "0: must be a whole number, at least 1"),
            (-8, "-8: must be a whole number, at least 1"),
            (512.0, r"512\.0: must be a whole number"),
            ("512", "'512': must be a whole number"),
            (None, "None: must be a whole number"),
            (True, "True: must be a whole number"),
            (2**31, "2147483648: must be at most 2147483647"),
        ):
            with pytest.raises(ConfigRefused, match=f"^{family}: {name}: {message}"):
                config.check(*sizes[:place], wrong, *sizes[place + 1 :])


@pytest.mark.parametrize(
    ("grid", "most"),
    [
        (ConvertConfig(vector=8).grid, 2**31 - 2**13),
        (DequantizeConfig("Q4_K", 256).grid, 2**31 - 1),
        (lambda nt: QuantizePad40Config().grid(nt, 32), MAX_CHUNKS),
        (lambda nt: DequantizePad40Config().grid(nt, 32), MAX_CHUNKS),
        (RmsNormConfig().grid, 2**31 - 1),
        (AttentionConfig(4, 1).grid, 2**31 - 1),
        (GemvConfig("Q4_K", 256).grid, 2**31 - 1),
    ],
)
def test_grids_of_what_is_no_number_of_items_are_refused(grid, most):
    """A block would find nothing to do, or indices would wrap."""
    assert min(grid(0)) >= 1 and grid(most)
    for wrong in (-1, most + 1, 2.0):
        with pytest.raises(ConfigRefused, match=f": {wrong}: must be"):
            grid(wrong)


@pytest.fixture(scope="module")
def configs():
    """A shipped config of every kind."""
    return list({type(kernel.config): kernel.config for kernel in all_kernels()}.values())


def kinds(field):
    """Python types that a field may have; none are listed of a config within a config."""
    known = {"int": (int,), "bool": (bool,), "float": (int, float), "str": (str,)}
    return known.get(field.type.split(" | ")[0], ())


def test_fields_of_another_type_are_refused_by_name(configs):
    assert len(configs) > 20
    for config in configs:
        for field in fields(config):
            for wrong in WRONG_TYPES:
                optional = wrong is None and field.type.endswith("| None")
                if optional or (type(wrong) in kinds(field) and wrong == wrong):
                    continue
                words = " = .* is no " if kinds(field) else " = "
                with pytest.raises(ConfigRefused, match=f"{field.name}{words}"):
                    replace(config, **{field.name: wrong})


def test_numbers_out_of_range_are_refused(configs):
    """A number makes either a config that a kernel can be described by, or a refusal with a number."""
    for config in configs:
        for field in fields(config):
            for number in NUMBERS if int in kinds(field) else ():
                try:
                    changed = replace(config, **{field.name: number})
                except ConfigRefused as error:
                    assert re.search(r"\d", str(error)), error
                else:
                    assert abs(number) < 2**31
                    assert str(changed) and changed.threads >= 32 and changed.shared_bytes >= 0
