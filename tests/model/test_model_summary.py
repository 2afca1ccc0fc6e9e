"""Summaries of model files."""

from dataclasses import replace

import pytest
from gguf.constants import GGMLQuantizationType

from minfer.model.gguf_file import GGUFFile
from minfer.model.summary import kv_cache_bytes, summarize

T = GGMLQuantizationType


def test_a_model(data_dir):
    file = GGUFFile.open(data_dir / "qwen2-k.gguf")
    summary = summarize(file, n_ctx=100)
    assert summary.problem is None
    assert summary.config.n_layers == 3
    assert summary.n_tensors == sum(use.count for use in summary.types) == 39
    assert {use.type: use.count for use in summary.types} == {T.Q4_K: 18, T.Q6_K: 5, T.F32: 16}
    assert [use.nbytes for use in summary.types] == sorted(
        (use.nbytes for use in summary.types), reverse=True
    )
    assert summary.weights_bytes == sum(info.nbytes for info in file.tensors.values())
    assert summary.n_elements == sum(info.n_elements for info in file.tensors.values())
    assert summary.file_bytes == (data_dir / "qwen2-k.gguf").stat().st_size
    assert summary.kv_bytes == 2 * 3 * 100 * 2 * 64 * 2
    assert summary.metadata["tokenizer.ggml.tokens"] == "[288 x string]"
    assert summary.metadata["qwen2.attention.layer_norm_rms_epsilon"] == "1e-06"
    assert summary.metadata["qwen2.block_count"] == "3"
    assert summarize(file).n_ctx == 512


def test_kv_cache_of_qwen2_5_7b(data_dir):
    """28 layers, 4 kv heads of 128: 57,344 bytes a token in f16."""
    config = summarize(GGUFFile.open(data_dir / "qwen2-k.gguf")).config
    config = replace(config, n_layers=28, n_kv_heads=4, head_dim=128)
    assert kv_cache_bytes(config, 1) == 57_344
    assert kv_cache_bytes(config, 1, element_bytes=4) == 114_688


def test_a_file_that_is_no_model_that_runs(data_dir):
    summary = summarize(GGUFFile.open(data_dir / "vocab-qwen2.5.gguf"), n_ctx=10)
    assert summary.config is None
    assert "token_embd.weight" in summary.problem
    assert (summary.n_ctx, summary.kv_bytes, summary.weights_bytes, summary.types) == (None, None, 0, ())
    assert summary.metadata["tokenizer.ggml.merges"] == "[151387 x string]"


@pytest.mark.parametrize("n_ctx", [1, 512])
def test_kv_bytes_grow_with_the_context(data_dir, n_ctx):
    file = GGUFFile.open(data_dir / "llama-legacy.gguf")
    assert summarize(file, n_ctx).kv_bytes == n_ctx * 2 * 4 * 64 * 2
