"""MMQ kernels compiled without a GPU: accumulators in registers, the instructions of their variant."""

import pytest

from minfer.cuda.mmq import fast, mmq, r1, stream, wide
from minfer.cuda.runtime import compile_kernel


def clean(config, arch):
    compiled = compile_kernel(mmq(config), arch)
    resources = compiled.resources
    assert resources.spill_bytes <= mmq(config).allowed_spill_bytes, f"{config} on {arch}"
    assert ".local" not in compiled.ptx
    return resources.instructions


@pytest.mark.parametrize("config", [fast("Q4_K"), fast("Q6_K")], ids=str)
def test_accumulators_stay_in_registers(config):
    counts = clean(config, "sm_90a")
    # A chunk's 2 x 8 fragments once (the loop over chunks has the rest): Q6_K's low and high bytes; Q4_K's
    # minima.
    assert counts["mma"] == 32 and counts["ldmatrix"] == (8 if config.variant == "folded" else 4)


@pytest.mark.parametrize("config", [stream("Q4_K"), stream("Q6_K")], ids=str)
def test_stream_k_has_one_copy_of_the_loop(config):
    assert clean(config, "sm_90a")["mma"] == clean(fast(config.weight_type), "sm_90a")["mma"]


def test_raw_bytes_are_copied_and_expanded_words_are_not():
    raw, words = clean(wide("Q6_K"), "sm_90a"), clean(r1("Q6_K"), "sm_90a")
    assert raw["cp.async"] > words["cp.async"] and words["ldmatrix"] and not raw.get("ldmatrix")
