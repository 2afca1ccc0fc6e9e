"""MMQ on the device: integers bit for bit, every shipped config on ragged shapes, all variants the same
bits."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.kernel import LaunchRefused
from minfer.cuda.mmq import (
    WEIGHT_TYPES,
    MmqConfig,
    fast,
    large,
    mmq,
    narrow,
    r1,
    shipped_configs,
    stream,
    wide,
)
from tests.cuda.mmq_cases import mmq_case
from tests.cuda.parity import Case

TOKENS = (*range(1, 10), 33, 127, 128, 129, 743, 2048)
SHIPPED = shipped_configs()
SEED = [make(name, kd) for name in WEIGHT_TYPES for make in (r1, narrow, wide) for kd in (4, 8)]
SWEPT = list(dict.fromkeys(SEED + SHIPPED))
CHECKED = [*SEED, fast("Q4_K"), fast("Q6_K")]


def case(config: MmqConfig, nt: int, od: int, depth: int) -> Case:
    return mmq_case(config, nt, od, depth, runtime.device().sms)


def depth_of(config: MmqConfig, blocks: int) -> int:
    return blocks * (256 if config.k_quant else 32)


@pytest.mark.parametrize("config", SHIPPED, ids=lambda c: str(c).replace(" ", "-"))
def test_ragged_shapes(config):
    with runtime.checked():
        for nt, od, blocks in ((1, 1, 1), (9, 67, 3), (129, 131, 7)):
            case(config, nt, od, depth_of(config, blocks)).run_on_gpu()


@pytest.mark.parametrize("config", CHECKED, ids=lambda c: str(c).replace(" ", "-"))
def test_integer_accumulators(config):
    mmq_case(config.checking(), 33, 71, depth_of(config, 3)).run_on_gpu()


@pytest.mark.parametrize("config", SWEPT, ids=lambda c: str(c).replace(" ", "-"))
def test_numbers_of_tokens(config):
    for nt in TOKENS:
        case(config, nt, 200, 1024).run_on_gpu()


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_variants_agree(weight_type):
    """R1, narrow and wide, at both depths, are the same numbers; the fast ones differ by their minima or
    folded scales, and by the order of stream-k's sums."""
    depth, results = 2048, []
    for make in (r1, narrow, wide):
        for kd in (4, 8):
            found = case(make(weight_type, kd), 131, 200, depth)
            found.run_on_gpu()
            results.append(found.results["out"])
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    scale = np.abs(results[0]).max()
    for make in (fast, stream, large):
        found = case(make(weight_type), 131, 200, depth)
        found.run_on_gpu()
        np.testing.assert_allclose(found.results["out"], results[0], atol=1e-5 * scale)


def test_a_model_s_sizes():
    for config, od, depth in ((fast("Q4_K"), 37888, 3584), (stream("Q6_K"), 3584, 18944)):
        case(config, 67, od, depth).run_on_gpu()


def test_more_shared_memory_than_the_device_has_is_refused():
    config = wide("Q4_K", 8)
    if config.shared_bytes <= runtime.device().shared_optin_bytes:
        pytest.skip(f"{config.shared_bytes} bytes fit here")
    with pytest.raises(LaunchRefused, match=str(config.shared_bytes)):
        runtime.load(mmq(config))
