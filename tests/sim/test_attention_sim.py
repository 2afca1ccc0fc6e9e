"""The attention kernels in the simulator: every variant of the seeds at tiny ragged shapes."""

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.attention import AttentionConfig, DecodeAttentionConfig, seed_steps
from tests.cuda.attention_cases import decode_cases, prefill_case

STEPS = seed_steps(2, 1, 64)
REGISTER = AttentionConfig(2, 1, 64, 32)


@pytest.mark.parametrize("step", STEPS)
def test_every_step(step):
    prefill_case(STEPS[step], nt=9, kv_end=21).run_simulated()


@pytest.mark.parametrize(
    ("step", "nt", "kv_end"),
    [
        ("before P5", 1, 1),
        ("P5.3", 65, 66),
        ("TKV=16", 1, 1),
        ("TKV=16", 17, 49),
        ("FAP2", 66, 70),
        ("FAP2, TKV=64, two stages", 1, 1),
        ("FAP2, TKV=64, two stages", 17, 49),
    ],
)
def test_ragged_shapes(step, nt, kv_end):
    """One query, tails of KV tiles on both sides of a half tile, two query tiles."""
    config = seed_steps(1, 1, 64)[step]
    prefill_case(config, nt, kv_end).run_simulated()


@pytest.mark.parametrize("step", ["P5.3", "FAP2"])
def test_head_dim_128_and_groups(step):
    prefill_case(seed_steps(3, 1, 128)[step], nt=5, kv_end=34).run_simulated()


@pytest.mark.parametrize("softmax", ["warp_per_row", "register"])
def test_biases_that_overflow_f16_scores(softmax):
    pv = "register" if softmax == "register" else "shared"
    config = AttentionConfig(1, 1, 64, 32, softmax, pv)
    case = prefill_case(config, nt=7, kv_end=40, bias=300.0)
    assert 300.0**2 > 65504
    case.run_simulated()


@pytest.mark.parametrize("softmax", ["warp_per_row", "register"])
def test_f32_queries_and_outputs(softmax):
    pv = "register" if softmax == "register" else "shared"
    config = AttentionConfig(1, 1, 64, 16, softmax, pv, query="f32", output="f32")
    prefill_case(config, nt=5, kv_end=18).run_simulated()


def test_stored_range_ends_before_the_causal_one():
    """kv_end is a predicate of its own: queries past the stored range see what is stored."""
    prefill_case(REGISTER, nt=6, kv_end=3, offset=0).run_simulated()
    prefill_case(
        AttentionConfig(1, 1, 64, 16, "warp_per_row", "shared"), nt=6, kv_end=3, offset=0
    ).run_simulated()


@pytest.mark.parametrize("step", ["P5.3", "FAP2"])
def test_chunks_equal_the_whole(step):
    config = seed_steps(1, 1, 64)[step]
    whole = prefill_case(config, nt=12)
    whole.run_simulated()
    parts = []
    for begin, end in ((0, 7), (7, 12)):
        arguments = dict(whole.arguments)
        arguments |= {
            "q": whole.arguments["q"][begin:end].copy(),
            "nt": end - begin,
            "q_offset": begin,
            "kv_end": end,
        }
        arguments["out"] = np.full_like(whole.arguments["out"][begin:end], np.nan)
        simulator.launch(whole.kernel, config.grid(end - begin), *arguments.values())
        parts.append(arguments["out"])
    np.testing.assert_array_equal(np.concatenate(parts), whole.results["out"])


@pytest.mark.parametrize("step", ["TKV=16", "FAP2, TKV=64, two stages"])
def test_any_thread_order_gives_the_same(step):
    config = seed_steps(1, 1, 64)[step]
    case = prefill_case(config, nt=3, kv_end=35)
    case.run_simulated()
    expected = case.results["out"]
    case.run_simulated(seed=1)
    np.testing.assert_array_equal(case.results["out"], expected)


@pytest.mark.parametrize("output", ["f32", "f16", "q8"])
@pytest.mark.parametrize("length", [1, 5, 37])
def test_decode(length, output):
    config = DecodeAttentionConfig(2, 1, 64, splits=3, output=output, warps=1)
    for case in decode_cases(config, length):
        case.run_simulated()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "query"), [(7, 1, 64, "f16"), (3, 3, 64, "f32"), (2, 2, 128, "f32")]
)
def test_decode_shapes(heads, kv_heads, head_dim, query):
    config = DecodeAttentionConfig(heads, kv_heads, head_dim, splits=2, query=query, warps=2)
    for case in decode_cases(config, 23, bias=300.0):
        case.run_simulated()


def test_decode_takes_the_length_from_memory():
    """The same launch at another length: what a replayed graph does."""
    config = DecodeAttentionConfig(1, 1, 64, splits=2, warps=1)
    split, combine = decode_cases(config, 19)
    shorter = decode_cases(config, 6)
    split.arguments["length"][0] = 6
    for name in ("q", "k_cache", "v_cache"):
        source = shorter[0].arguments[name]
        split.arguments[name].reshape(-1)[: source.size] = source.reshape(-1)
    combine.expected = shorter[1].expected
    split.run_simulated()
    combine.run_simulated()
