"""Hopper's attention on a GPU: ragged lengths, offsets, groups and hostile scores, in checked mode."""

from __future__ import annotations

import pytest

from minfer.cuda.attention import HopperAttentionConfig, hopper_steps
from tests.cuda.hopper_attention_cases import KINDS, HopperCase

pytestmark = pytest.mark.usefixtures("hopper")

LENGTHS = (1, 31, 33, 64, 127, 128, 129, 255, 257, 512, 2016, 2048)
OFFSETS = (1, 127, 128, 300, 1000)
SHAPES = ((1, 1, 128), (3, 1, 128), (7, 1, 128), (3, 3, 64), (9, 3, 64), (14, 2, 64))
STEPS = hopper_steps(7, 1, 128)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prompts(shape):
    for nt in LENGTHS:
        HopperCase(HopperAttentionConfig(*shape), nt).run_on_gpu()


@pytest.mark.parametrize("shape", [(7, 1, 128), (3, 3, 64)], ids=str)
def test_chunks_onto_a_filled_cache(shape):
    for nt in (1, 33, 128, 257):
        for offset in OFFSETS:
            HopperCase(HopperAttentionConfig(*shape), nt, nt + offset).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
def test_every_step(step):
    for nt, kv_end in ((129, 129), (512, 512), (200, 1111)):
        HopperCase(STEPS[step], nt, kv_end).run_on_gpu()


@pytest.mark.parametrize("softmax", ["running", "lazy", "diagonal"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_hostile_scores(kind, softmax):
    config = next(c for c in reversed(STEPS.values()) if c.softmax == softmax)
    for nt, kv_end in ((300, 700), (700, 700)):
        HopperCase(config, nt, kv_end, kind=kind).run_on_gpu()


def test_a_reference_that_moves_in_nearly_every_tile():
    HopperCase(HopperAttentionConfig(7, 1, 128, rescue_above=1.0), 700, 1500).run_on_gpu()


def test_queries_past_the_stored_rows():
    HopperCase(HopperAttentionConfig(7, 1, 128), 200, 3, offset=0).run_on_gpu()
    HopperCase(HopperAttentionConfig(7, 1, 128), 200, 140, offset=90).run_on_gpu()


def test_more_tiles_than_blocks():
    HopperCase(HopperAttentionConfig(28, 4), 1200, 1300).run_on_gpu()
