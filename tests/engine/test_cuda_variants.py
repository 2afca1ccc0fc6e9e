"""Variants: each differs from f16 in what it says, and has a name that a command line can take."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from minfer.cuda.attention import seed_steps
from minfer.cuda.gemm import GemmConfig
from minfer.engine.cuda.plan import WAYS
from minfer.engine.cuda.variants import choose, variants
from minfer.engine.errors import InputError

FIELDS = {"GEMM": {"gemm", "wide", "small"}, "attention": {"attention"}, "convert": {"convert"}}


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_each_changes_one_thing_of_f16(arch):
    known = variants(arch)
    base = known["f16"]
    assert next(iter(known)) == "f16" and base.route.name == "f16" and base.changes == ""
    for name, variant in known.items():
        assert name == variant.name and re.fullmatch(r"[a-z0-9.-]+", name)
        changed = {
            f.name
            for f in fields(base.route)
            if getattr(variant.route, f.name) != getattr(base.route, f.name)
        }
        assert changed - {"name"} <= FIELDS.get(variant.changes, set())
        assert (variant.weights != "auto") == (variant.changes == "weights")
    routes = [(variant.route, variant.weights) for variant in known.values()]
    assert len(set(routes)) >= len(routes) - (arch == "sm_89")  # f16 has no wide tile there: it is 128x128
    assert ("128x256" in known) == (arch != "sm_89")


def test_every_variant_of_the_seeds_is_there():
    known = variants("sm_90a").values()
    tiles = {(v.route.gemm.tile_m, v.route.gemm.tile_k, v.route.gemm.a_source) for v in known}
    assert tiles >= {(m, k, "f16") for m in (64, 128, 256) for k in (32, 64)} | {(128, 32, "f32_mirror")}
    assert {v.route.attention for v in known} == set(seed_steps(28, 4))
    assert {v.route.convert for v in known} == {"fused", "vector", "scalar"}
    assert {v.weights for v in known} == {"auto", *WAYS} - {"resident"}
    assert variants("sm_90a")["tm64"].route.gemm == GemmConfig()


def test_choosing():
    assert [v.name for v in choose(["tm256", "fa-p5.0", "tm256"], "sm_90a")] == ["f16", "tm256", "fa-p5.0"]
    assert [v.name for v in choose(["tm64", "all"], "sm_90a")] == list(variants("sm_90a"))
    with pytest.raises(InputError, match=r"variant 'tm512' is unknown: choose among f16, tm64, .*, or all"):
        choose(["tm512"], "sm_90a")
