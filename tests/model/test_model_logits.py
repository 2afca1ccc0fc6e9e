"""Config, tensor names, RoPE and dequantization together give the logits of independent implementations."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minfer.model.model import Model
from minfer.model.synth import synth
from tests.model.reference_forward import forward
from tests.model.tiny_models import model_arrays, write_model

ROPE_CASES = {
    "none": {},
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    "linear, attn_factor": {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 3.0,
        "rope.scaling.attn_factor": 0.7,
    },
    "yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    },
    "yarn, attn_factor": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.attn_factor": 0.7,
    },
    "rope_freqs": {},
}


@pytest.mark.parametrize("name", ["qwen2-k", "llama-legacy", "qwen3-k"])
def test_oracle_logits(data_dir, name):
    expected = np.load(data_dir / f"{name}-logits.npz")
    logits = forward(Model.load(data_dir / f"{name}.gguf"), expected["ids"])
    for reference, bound in (("logits_f32", 1e-5), ("logits_llamacpp", 0.05)):
        error = logits - expected[reference]
        assert np.sqrt((error**2).mean() / (expected[reference] ** 2).mean()) < bound


def rope_models(folder: Path) -> Iterator[tuple[str, Path]]:
    """F32 models whose attention is sharp enough for positions to matter, one for each kind of RoPE."""
    for arch in ("llama", "qwen2"):
        gains = {"attn_q.weight": 4, "attn_k.weight": 4, "output.weight": 3, "token_embd.weight": 5}
        tensors = {
            name: array * np.float32(gain)
            for name, array in model_arrays(arch).items()
            for ending, gain in gains.items()
            if name.endswith(ending)
        }
        for case, settings in ROPE_CASES.items():
            if case == "rope_freqs":
                tensors = tensors | {"rope_freqs.weight": np.array([1, 1.5, 4, 8], np.float32)}
            if case != "rope_freqs" or arch == "llama":  # llama.cpp reads the divisors for llama only
                path = folder / f"{arch}-{case}.gguf"
                write_model(path, arch, settings=settings | {"context_length": 512}, tensors=tensors)
                yield f"{arch}: {case}", path


def test_rope_equals_llamacpp(data_dir, tmp_path):
    """`rope-llamacpp.json` holds the ten likeliest next tokens by llama.cpp's CPU backend (f16 KV cache).

    A wrong kind of RoPE is off by 3 and more in log probability.
    """
    expected = json.loads((data_dir / "rope-llamacpp.json").read_text())
    for name, path in rope_models(tmp_path):
        logits = forward(Model.load(path), expected[name]["ids"])[-1].astype(np.float64)
        log_probabilities = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        for token, log_probability in expected[name]["top"]:
            assert log_probabilities[token] == pytest.approx(log_probability, abs=0.03), name


def test_synthetic_logits_are_sane(tmp_path):
    model = Model.load(synth("qwen2-tiny", tmp_path / "m.gguf", progress=False))
    logits = forward(model, model.tokenizer.encode("hello there, this is a test of a toy"))
    assert np.isfinite(logits).all()
    assert 2 < logits.std() < 3
    assert len(set(logits.argmax(axis=-1).tolist())) > 5
