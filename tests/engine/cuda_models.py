"""Models so small that the simulator runs them whole: heads of 64, rows of 64 to 128 weights, mixed
formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as Type

from minfer.model.model import Model
from minfer.model.quants import pack

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 2, 1, 64, 96, 72
QUANTIZED = {"q": "Q4_0", "k": "Q4_0", "v": "Q8_0", "o": "Q5_1", "gate": "Q4_1", "up": "Q4_1", "down": "Q5_0"}
BLOCKS_K = {"q": "Q4_K", "k": "Q4_K", "v": "Q6_K", "o": "Q8_0", "gate": "Q4_K", "up": "Q4_K", "down": "Q6_K"}
K_QUANTS = dict.fromkeys(("q", "k", "o", "gate", "up"), "Q4_K") | {"v": "Q6_K", "down": "Q6_K"}
MIXED = QUANTIZED | {"k": "Q8_0", "up": "BF16", "down": "F16", "o": "F32"}


def micro_model(
    path: Path,
    arch: str = "qwen2",
    formats: dict[str, str] = QUANTIZED,
    layers: int = 2,
    hidden: int = HIDDEN,
    ffn: int = FFN,
    heads: int = HEADS,
    output: str = "Q8_0",
) -> Model:
    """A model of 1 kv head with random weights, large enough for positions to matter."""
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, arch)
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)

    def matrix(name: str, format: str, rows: int, columns: int, gain: float = 1.0) -> None:
        kind = Type[format]
        values = (random.standard_normal((rows, columns)) * gain / columns**0.5).astype(np.float32)
        writer.add_tensor(name, pack(values, kind), raw_dtype=kind)

    def vector(name: str, size: int, mean: float, std: float) -> None:
        writer.add_tensor(name, (mean + std * random.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", "Q8_0", VOCAB, hidden, 8.0)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        vector(prefix + "attn_norm.weight", hidden, 1.0, 0.1)
        for part, rows in (("q", heads * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            matrix(f"{prefix}attn_{part}.weight", formats[part], rows, hidden, 2.0)
            if arch == "qwen2":
                vector(f"{prefix}attn_{part}.bias", rows, 0.0, 1.0)
            if arch == "qwen3" and part in "qk":
                vector(f"{prefix}attn_{part}_norm.weight", HEAD_DIM, 1.0, 0.3)
        matrix(prefix + "attn_output.weight", formats["o"], hidden, heads * HEAD_DIM)
        vector(prefix + "ffn_norm.weight", hidden, 1.0, 0.1)
        matrix(prefix + "ffn_gate.weight", formats["gate"], ffn, hidden)
        matrix(prefix + "ffn_up.weight", formats["up"], ffn, hidden)
        matrix(prefix + "ffn_down.weight", formats["down"], hidden, ffn)
    vector("output_norm.weight", hidden, 1.0, 0.1)
    matrix("output.weight", output, VOCAB, hidden, 2.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Model.load(path)
