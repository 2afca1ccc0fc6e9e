"""The attention kernels on a GPU: every step of the seeds over the issue's shapes."""

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.attention import AttentionConfig, DecodeAttentionConfig, seed_steps
from tests.cuda.attention_cases import decode_cases, prefill_case

NT = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512, 2048)
KV = (1, 31, 33, 255, 257, 2016)
STEPS = seed_steps(7, 1, 128)


@pytest.mark.parametrize("step", STEPS)
def test_prompts(step):
    for nt in NT:
        prefill_case(STEPS[step], nt).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
def test_chunks_onto_a_filled_cache(step):
    for kv in KV:
        for nt in (1, 17, 64):
            if nt <= kv:
                prefill_case(STEPS[step], nt, kv).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
def test_biases_that_overflow_f16_scores(step):
    prefill_case(STEPS[step], 129, bias=300.0).run_on_gpu()
    prefill_case(STEPS[step], 65, 2016, bias=300.0).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(14, 2), (9, 3)])
def test_head_dim_64(step, heads, kv_heads):
    config = seed_steps(heads, kv_heads, 64)[step]
    for nt in (1, 17, 129):
        prefill_case(config, nt).run_on_gpu()
        prefill_case(config, nt, nt + 255).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
def test_a_prompt_of_the_7b(step):
    """All 28 heads; the whole 2048 tokens with the fastest step."""
    config = seed_steps(28, 4)[step]
    prefill_case(config, 2048 if step == "FAP2, TKV=64, two stages" else 257).run_on_gpu()


def test_f32_queries_and_outputs():
    prefill_case(AttentionConfig(7, 1, stages=2, query="f32", output="f32"), 129).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
def test_chunked_prefill_equals_whole_prefill(step):
    config = STEPS[step]
    whole = prefill_case(config, 512)
    whole.run_on_gpu()
    for chunk in (64, 100, 511):
        parts = []
        for begin in range(0, 512, chunk):
            end = min(512, begin + chunk)
            arguments = dict(whole.arguments)
            arguments |= {"q": whole.arguments["q"][begin:end].copy(), "nt": end - begin}
            arguments |= {"q_offset": begin, "kv_end": end}
            arguments["out"] = np.full_like(whole.arguments["out"][begin:end], np.nan)
            held = [runtime.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments.values()]
            runtime.launch(whole.kernel, config.grid(end - begin), *held)
            parts.append(held[3].to_host())
        np.testing.assert_array_equal(np.concatenate(parts), whole.results["out"])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(28, 4, 128), (14, 2, 64), (9, 3, 64)])
@pytest.mark.parametrize("output", ["f32", "f16", "q8"])
def test_decode(heads, kv_heads, head_dim, output):
    for splits in (32, 66):
        config = DecodeAttentionConfig(heads, kv_heads, head_dim, splits=splits, output=output)
        for length in KV:
            for case in decode_cases(config, length):
                case.run_on_gpu()


def test_decode_with_biases():
    for case in decode_cases(DecodeAttentionConfig(28, 4, query="f32"), 257, bias=300.0):
        case.run_on_gpu()
