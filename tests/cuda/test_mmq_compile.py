"""MMQ kernels compiled without a GPU: accumulators in registers, the instructions of their variant."""

import pytest

from minfer.cuda.mmq import fast, large, mmq, r1, stream, wide
from tests.cuda.compiled import clean

FAST = (fast("Q4_K"), fast("Q6_K"))
STREAMS = (stream("Q4_K"), stream("Q6_K"))
RAW, WORDS = wide("Q6_K"), r1("Q6_K")
COMPILED = (*FAST, *STREAMS, large("Q4_K"), RAW, WORDS)


@pytest.mark.parametrize("config", FAST, ids=str)
def test_accumulators_stay_in_registers(config):
    counts = clean(mmq(config), "sm_90a").instructions
    # A chunk's 2 x 8 fragments once (the loop over chunks has the rest): Q6_K's low and high bytes; Q4_K's
    # minima.
    assert counts["mma"] == 32 and counts["ldmatrix"] == (8 if config.variant == "folded" else 4)


@pytest.mark.parametrize("config", STREAMS, ids=str)
def test_stream_k_has_one_copy_of_the_loop(config):
    streamed, whole = (clean(mmq(c), "sm_90a").instructions for c in (config, fast(config.weight_type)))
    assert streamed["mma"] == whole["mma"]


def test_the_largest_tile_has_its_registers():
    counts = clean(mmq(large("Q4_K")), "sm_90a").instructions
    assert counts["mma"] == 64  # 4 x 8 fragments of a chunk, and of the minima


def test_raw_bytes_are_copied_and_expanded_words_are_not():
    raw, words = (clean(mmq(config), "sm_90a").instructions for config in (RAW, WORDS))
    assert raw["cp.async"] > words["cp.async"] and words["ldmatrix"] and not raw.get("ldmatrix")
