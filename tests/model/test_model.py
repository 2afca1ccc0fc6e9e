"""Whole models: configuration read from the file, tensors found and checked."""

from dataclasses import replace

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from minfer.model.config import ModelConfig, RopeConfig
from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.model import LayerTensors, Model
from tests.model.tiny_models import gguf_bytes, key, write_model

T = GGMLQuantizationType


def failure(path):
    with pytest.raises(ModelFileError) as caught:
        Model.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


EXPECTED = {
    "qwen2-k": ModelConfig(
        architecture="qwen2",
        name="qwen2-k.gguf",
        n_layers=3,
        hidden=256,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        ffn=512,
        vocab_size=288,
        context_length=512,
        rms_eps=float(np.float32(1e-6)),
        rope=RopeConfig(64, 1e6, interleaved=False),
        tied_output=False,
        has_qkv_bias=True,
        has_qk_norm=False,
    ),
    "llama-legacy": ModelConfig(
        architecture="llama",
        name="llama-legacy.gguf",
        n_layers=4,
        hidden=320,
        n_heads=5,
        n_kv_heads=1,
        head_dim=64,
        ffn=864,
        vocab_size=288,
        context_length=512,
        rms_eps=float(np.float32(1e-5)),
        rope=RopeConfig(64, 1e5, interleaved=True),
        tied_output=True,
        has_qkv_bias=False,
        has_qk_norm=False,
    ),
    "qwen3-k": ModelConfig(
        architecture="qwen3",
        name="qwen3-k.gguf",
        n_layers=2,
        hidden=256,
        n_heads=4,
        n_kv_heads=2,
        head_dim=128,
        ffn=768,
        vocab_size=288,
        context_length=512,
        rms_eps=float(np.float32(1e-6)),
        rope=RopeConfig(128, 1e6, interleaved=False),
        tied_output=True,
        has_qkv_bias=False,
        has_qk_norm=True,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_oracle_models_load(data_dir, name):
    model = Model.load(data_dir / f"{name}.gguf")
    assert model.config == EXPECTED[name]
    named = {model.embedding, model.output, model.output_norm}
    for index in range(model.config.n_layers):
        named.update(model.layer(index).names())
    assert named == set(model.file.tensors)
    assert model.output == ("token_embd.weight" if model.config.tied_output else "output.weight")
    assert model.rope_freqs is None
    assert model.chat_template is None
    assert model.tokenizer.vocab_size == 288


def test_layer_names():
    names = LayerTensors("a", "q", "k", "v", "o", "f", "g", "u", "d", q_norm="qn")
    assert names.names() == ["a", "q", "k", "v", "o", "f", "g", "u", "d", "qn"]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_architectures(tmp_path, arch, tied):
    model = Model.load(write_model(tmp_path / "m.gguf", arch, tied=tied))
    assert model.config.architecture == arch
    assert model.config.name == arch
    assert model.config.tied_output == tied
    assert model.config.rope.interleaved == (arch == "llama")
    layer = model.layer(1)
    assert layer.q_bias == ("blk.1.attn_q.bias" if arch == "qwen2" else None)
    assert layer.k_norm == ("blk.1.attn_k_norm.weight" if arch == "qwen3" else None)


def test_biases_are_read_from_the_file(tmp_path):
    assert not Model.load(write_model(tmp_path / "a.gguf", bias=False)).config.has_qkv_bias
    biases = {
        f"blk.{layer}.attn_{part}.bias": np.zeros(rows, np.float32)
        for layer in range(2)
        for part, rows in (("q", 32), ("k", 16), ("v", 16))
    }
    assert Model.load(write_model(tmp_path / "b.gguf", "llama", tensors=biases)).config.has_qkv_bias


def test_a_sharded_model_loads(tmp_path):
    model = Model.load(write_model(tmp_path / "m.gguf", shards=3))
    assert len(model.file.paths) == 3
    assert model.tokenizer.vocab_size == 261


def test_an_architecture_that_is_not_supported(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([key("general.architecture", 8, "mamba")]))
    assert failure(path) == "general.architecture is 'mamba' (supported: llama, qwen2, qwen3)"
    path.write_bytes(gguf_bytes())
    assert failure(path) == "general.architecture is None (supported: llama, qwen2, qwen3)"
    path.write_bytes(gguf_bytes([key("general.architecture", 9, (8, ["llama"]))]))
    assert failure(path) == "general.architecture is ['llama'] (supported: llama, qwen2, qwen3)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_count": None}, "qwen2.block_count is None; it must be a whole number from 1 to 2147483647"),
        ({"block_count": 0}, "qwen2.block_count is 0; it must be a whole number from 1 to 2147483647"),
        ({"block_count": 3}, "tensor 'blk.2.attn_norm.weight' is missing; its shape would be (32,)"),
        ({"block_count": 2**31 - 1}, "tensor 'blk.2.attn_norm.weight' is missing; its shape would be (32,)"),
        ({"block_count": 1}, "tensor 'blk.1.attn_norm.weight' has no place in a qwen2 model of this kind"),
        (
            {"embedding_length": "32"},
            "qwen2.embedding_length is '32'; it must be a whole number from 1 to 2147483647",
        ),
        ({"embedding_length": 64}, "tensor 'token_embd.weight' has shape (261, 32), not (261, 64)"),
        (
            {"feed_forward_length": 2**32 - 1},
            "qwen2.feed_forward_length is 4294967295; it must be a whole number from 1",
        ),
        ({"feed_forward_length": 96}, "tensor 'blk.0.ffn_gate.weight' has shape (64, 32), not (96, 32)"),
        (
            {"feed_forward_length": [64, 32]},
            "qwen2.feed_forward_length is [64, 32]; it must be a whole number",
        ),
        (
            {"attention.head_count": 5},
            "qwen2.attention.head_count is 5, not a multiple of attention.head_count_kv, 2",
        ),
        (
            {"attention.head_count": 6},
            "qwen2.embedding_length is 32, not a multiple of attention.head_count, 6, "
            "and there is no attention.key_length",
        ),
        ({"attention.head_count": 8}, "tensor 'blk.0.attn_k.weight' has shape (16, 32), not (8, 32)"),
        ({"attention.head_count_kv": 4}, "tensor 'blk.0.attn_k.weight' has shape (16, 32), not (32, 32)"),
        ({"attention.key_length": 16}, "tensor 'blk.0.attn_q.weight' has shape (32, 32), not (64, 32)"),
        (
            {"attention.key_length": 7},
            "qwen2.attention.key_length is 7; rotary embedding needs an even one",
        ),
        (
            {"attention.key_length": 8, "attention.value_length": 16},
            "qwen2.attention.value_length is 16, not the key length 8",
        ),
        (
            {"attention.layer_norm_rms_epsilon": None},
            "qwen2.attention.layer_norm_rms_epsilon is None; it must be a",
        ),
        (
            {"attention.layer_norm_rms_epsilon": -1.0},
            "qwen2.attention.layer_norm_rms_epsilon is -1.0; it must be a",
        ),
        (
            {"attention.layer_norm_rms_epsilon": float("nan")},
            "qwen2.attention.layer_norm_rms_epsilon is nan; it must",
        ),
        ({"rope.freq_base": 1.0}, "qwen2.rope.freq_base is 1.0; it must be a finite number above 1"),
        ({"rope.dimension_count": 4}, "qwen2.rope.dimension_count is 4, not the head size 8"),
        (
            {"rope.scaling.type": "longrope"},
            "qwen2.rope.scaling.type is 'longrope' (supported: none, linear, yarn)",
        ),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0},
            "qwen2.rope.scaling.factor is 0.0; it must be a",
        ),
        ({"expert_count": 8}, "qwen2.expert_count is 8, which is not supported"),
        ({"context_length": True}, "qwen2.context_length is True; it must be a whole number"),
    ],
    ids=str,
)
def test_a_bad_setting_is_one_clear_line(tmp_path, settings, message):
    assert failure(write_model(tmp_path / "m.gguf", settings=settings)).startswith(message)


def test_one_value_a_layer_is_accepted_when_they_agree(tmp_path):
    path = write_model(tmp_path / "m.gguf", settings={"attention.head_count_kv": [2, 2]})
    assert Model.load(path).config.n_kv_heads == 2


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_embd.weight": None}, "tensor 'token_embd.weight' is missing or not a matrix"),
        ({"output_norm.weight": None}, "tensor 'output_norm.weight' is missing; its shape would be (32,)"),
        (
            {"blk.1.ffn_down.weight": None},
            "tensor 'blk.1.ffn_down.weight' is missing; its shape would be (32, 64)",
        ),
        ({"blk.1.attn_q.bias": None}, "tensor 'blk.1.attn_q.bias' is missing; its shape would be (32,)"),
        (
            {"blk.0.attn_norm.weight": np.ones(31, np.float32)},
            "tensor 'blk.0.attn_norm.weight' has shape (31,), not (32,)",
        ),
        (
            {"output.weight": np.ones((260, 32), np.float32)},
            "tensor 'output.weight' has shape (260, 32), not (261, 32)",
        ),
        (
            {"token_embd.weight": np.ones((262, 32), np.float32)},
            "tokenizer.ggml.tokens has 261 tokens, but token_embd.weight has 262 rows",
        ),
        (
            {"blk.0.attn_output.bias": np.ones(32, np.float32)},
            "tensor 'blk.0.attn_output.bias' has no place in a qwen2 model of this kind",
        ),
        (
            {"rope_freqs.weight": np.ones(3, np.float32)},
            "tensor 'rope_freqs.weight' has shape (3,), not (4,)",
        ),
        (
            {"blk.0.ffn_up.weight": np.ones((64, 32), np.int32)},
            "tensor 'blk.0.ffn_up.weight' has type I32 (supported: F32, F16, ",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_tensor_is_one_clear_line(tmp_path, tensors, message):
    assert failure(write_model(tmp_path / "m.gguf", tensors=tensors)).startswith(message)


def test_a_model_without_a_vocabulary_loads(tmp_path):
    model = Model.load(write_model(tmp_path / "m.gguf", tokens=False))
    assert model.config.vocab_size == 261
    with pytest.raises(ModelFileError, match=r"m\.gguf: tokenizer\.ggml\.model"):
        _ = model.tokenizer


def test_tokens_that_are_no_list(tmp_path):
    path = write_model(tmp_path / "m.gguf", tokens=False)
    file = GGUFFile.open(path)
    metadata = dict(file.metadata) | {"tokenizer.ggml.tokens": 7}
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens has 7 tokens"):
        ModelConfig.from_metadata(metadata, file.tensors)


def test_rope_freqs(tmp_path):
    divisors = np.array([1, 2, 4, 8], np.float32)
    path = write_model(tmp_path / "m.gguf", "llama", tensors={"rope_freqs.weight": divisors})
    np.testing.assert_array_equal(Model.load(path).rope_freqs, divisors)
    for bad in (0.0, -1.0, np.nan, np.inf):
        divisors[2] = bad
        path = write_model(tmp_path / "m.gguf", "llama", tensors={"rope_freqs.weight": divisors})
        assert failure(path) == "tensor 'rope_freqs.weight' has a divisor that is not a number above 0"


def test_rope_that_overflows(tmp_path):
    settings = {"rope.scaling.type": "linear", "rope.scaling.factor": 1e-44}
    message = failure(write_model(tmp_path / "m.gguf", settings=settings))
    assert message == "the RoPE frequencies overflow: rope.scaling or rope_freqs.weight is out of range"


def test_a_chat_template_must_be_a_string(tmp_path):
    model = Model.load(write_model(tmp_path / "m.gguf"))
    assert model.chat_template is None
    model.file.metadata = {"tokenizer.chat_template": 3}
    with pytest.raises(ModelFileError, match=r"m\.gguf: tokenizer\.chat_template is not a string"):
        _ = model.chat_template


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        ({"rope.scaling.factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0}, {"scaling": "linear", "factor": 2.0}),
        ({"rope.scaling.factor": 1.0}, {}),
        ({"rope.scaling.attn_factor": 0.5}, {"attn_factor": 0.5}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            {"scaling": "yarn", "factor": 4.0, "original_context": 64},
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
                "rope.scaling.attn_factor": 0.5,
                "rope.scaling.yarn_ext_factor": 0.75,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.yarn_beta_slow": 2.0,
            },
            {
                "scaling": "yarn",
                "factor": 4.0,
                "original_context": 16,
                "attn_factor": 0.5,
                "ext_factor": 0.75,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
            },
        ),
    ],
    ids=str,
)
def test_rope_scaling(tmp_path, settings, expected):
    rope = Model.load(write_model(tmp_path / "m.gguf", settings=settings)).config.rope
    assert rope == replace(RopeConfig(8, 10000.0, interleaved=False), **expected)


@pytest.mark.parametrize("kind", [T.F16, T.BF16, T.Q8_0, T.Q5_1], ids=lambda kind: kind.name)
def test_weights_of_another_type(tmp_path, kind):
    model = Model.load(write_model(tmp_path / "m.gguf", kind=kind))
    exact = Model.load(write_model(tmp_path / "f32.gguf")).file.dequantized("blk.0.ffn_up.weight")
    assert model.file.tensors["blk.0.ffn_up.weight"].type == kind
    assert np.abs(model.file.dequantized("blk.0.ffn_up.weight") - exact).max() < 0.02
