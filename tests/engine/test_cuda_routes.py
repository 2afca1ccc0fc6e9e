"""Names, switches and tiles of the cuda backend's routes."""

from __future__ import annotations

import pytest

from minfer.cuda.gemm import GemmConfig
from minfer.cuda.kernel import ConfigRefused
from minfer.engine.backend import choose_backend
from minfer.engine.cuda.routes import LARGE_TILE, SMALL_TILE, WIDE_TILE, Route, choose_route
from minfer.engine.errors import EngineError, InputError


def test_auto_takes_what_the_architecture_has():
    assert choose_route("auto", "sm_90a", {}).wgmma
    assert choose_route("auto", "sm_89", {}) == Route("f16")
    assert not choose_route("f16", "sm_90a", {}).wgmma


def test_refusals():
    with pytest.raises(InputError, match="'mmq-raw' is unknown: choose one of auto, f16, f16-wgmma"):
        choose_route("mmq-raw", "sm_90a", {})
    with pytest.raises(EngineError, match="needs a GPU of sm_90"):
        choose_route("f16-wgmma", "sm_89", {})
    with pytest.raises(InputError, match="MINFER_GEMM_TM select mma"):
        choose_route("f16-wgmma", "sm_90a", {"MINFER_GEMM_TM": "64"})
    with pytest.raises(ConfigRefused, match="MINFER_GEMM_TM = '96' is not one of 64, 128, 256"):
        choose_route("f16", "sm_90a", {"MINFER_GEMM_TM": "96"})
    with pytest.raises(ConfigRefused, match="MINFER_GEMM_K64 = 'yes' is not one of 0, 1"):
        choose_route("f16", "sm_90a", {"MINFER_GEMM_K64": "yes"})
    with pytest.raises(InputError, match="route 'f16' is of the cuda backend"):
        choose_backend("host", "f16")
    with pytest.raises(InputError, match="weights 'blocks' is of the cuda backend"):
        choose_backend("host", weights="blocks")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MINFER_GEMM_TM": "64"}, GemmConfig()),
        ({"MINFER_GEMM_TM": "128"}, GemmConfig(tile_m=128)),
        ({"MINFER_GEMM_TM": "256"}, GemmConfig(tile_m=256, warps=16)),
        ({"MINFER_GEMM_TM": "128", "MINFER_GEMM_K64": "1"}, GemmConfig(tile_m=128, tile_k=64)),
        ({"MINFER_GEMM_K64": "1"}, GemmConfig(tile_m=128, tile_k=64)),
        ({"MINFER_GEMM_AF32": "1"}, GemmConfig(tile_m=128, a_source="f32_mirror")),
    ],
    ids=str,
)
def test_the_seeds_switches(environment, expected):
    route = choose_route("auto", "sm_90a", environment)
    assert [route.config(n, 4096, 132) for n in (8, 2048)] == [expected, expected]
    mirror = "MINFER_GEMM_AF32" in environment
    assert route.keeps_f32 == mirror
    assert route.settings()["convert"] == ("within the GEMM" if mirror else "fused")
    assert all(f"{key[12:]}={value}" in route.name for key, value in environment.items())


def test_switches_that_are_off_change_nothing():
    off = {"MINFER_GEMM_TM": "", "MINFER_GEMM_K64": "0"}
    assert choose_route("auto", "sm_90a", off) == choose_route("auto", "sm_90a", {})


def test_tiles_by_shape():
    route = choose_route("f16", "sm_90a", {})
    assert route.config(64, 37888, 132) == SMALL_TILE
    assert route.config(2048, 37888, 132) == WIDE_TILE  # 2368 tiles: 17.9 waves
    assert route.config(2048, 3584, 132) == WIDE_TILE  # 224 tiles: 1.7 waves
    assert route.config(2048, 4608, 132) == LARGE_TILE  # 288 tiles: 2.2 waves, the third nearly empty
    assert choose_route("f16", "sm_89", {}).config(2048, 37888, 132) == LARGE_TILE
    hopper = choose_route("f16-wgmma", "sm_90a", {})
    assert hopper.config(65, 3584, 132) is None
    assert hopper.mma_config(2048, 8192, 132) == WIDE_TILE


def test_no_wide_tile_where_the_gemm_dequantizes():
    route = choose_route("f16", "sm_90a", {})
    assert route.block_config(64) == SMALL_TILE
    assert route.block_config(2048) == LARGE_TILE


def test_what_activations_are():
    assert Route("a").activations == "f16"
    assert Route("a", convert="vector").activations == "f32"
    assert Route("a", gemm=GemmConfig(a_source="f32_mirror")).activations == "f32"
    with pytest.raises(InputError, match="convert='twice'"):
        Route("a", convert="twice")
    with pytest.raises(InputError, match="attention='FAP3': choose one of before P5; "):
        Route("a", attention="FAP3")
    with pytest.raises(InputError, match="give a small config"):
        Route("a", wgmma=True, small=None)


@pytest.mark.parametrize(
    ("name", "environment", "expected"),
    [
        ("mmq_raw_wide", {}, "mmq_raw_wide"),
        ("auto", {"MINFER_MMQ": "1"}, "mmq"),
        ("auto", {"MINFER_MMQ": "1", "MINFER_MMQ_RAW": "1"}, "mmq_raw"),
        ("mmq_raw", {"MINFER_MMQ_RAW": "1"}, "mmq_raw"),
        ("auto", {"MINFER_MMQ": "0", "MINFER_MMQ_RAW": ""}, None),
    ],
)
def test_mmq_and_the_seeds_switches(name, environment, expected):
    for arch in ("sm_80", "sm_90a", "sm_121a"):
        assert choose_route(name, arch, environment).mmq == expected


def test_mmq_refusals():
    with pytest.raises(InputError, match="MINFER_MMQ_RAW=2: use 1, or 0 for off"):
        choose_route("auto", "sm_90a", {"MINFER_MMQ_RAW": "2"})
    with pytest.raises(InputError, match="MINFER_MMQ selects the route mmq: unset it, or leave out f16"):
        choose_route("f16", "sm_90a", {"MINFER_MMQ": "1"})
    with pytest.raises(InputError, match="MINFER_GEMM_TM select mma"):
        choose_route("mmq", "sm_90a", {"MINFER_GEMM_TM": "64"})
    with pytest.raises(InputError, match="mmq='raw': choose one of mmq, mmq_raw, mmq_raw_wide, mmq_fast"):
        Route("a", mmq="raw")
    with pytest.raises(InputError, match="leave wgmma off"):
        Route("a", mmq="mmq", convert="vector")


def test_settings_name_the_choices():
    hopper = choose_route("f16-wgmma", "sm_90a", {}).settings()
    assert hopper["gemm"] == "wgmma, tile by shape, fused sums, swiglu and RoPE"
    assert Route("a", wgmma=True, fused=False).settings()["gemm"] == "wgmma, tile by shape"
    assert hopper["attention"] == "wgmma, no running maximum"
    assert choose_route("f16", "sm_89", {}).settings() == {
        "route": "f16",
        "gemm": "128x128x64 3 stages 8 warps swizzled",
        "attention": "FAP2, TKV=64",
        "convert": "fused",
    }
    gemm = choose_route("mmq_raw", "sm_89", {}).settings()["gemm"]
    assert gemm == "MMQ narrow KD=8 -> MMQ R1 -> 128x128x64 3 stages 8 warps swizzled"
