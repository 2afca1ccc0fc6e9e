"""Synthetic models: seeded random weights in the shapes, types and file layout of real ones.

Every matrix has standard deviation 1 / sqrt(row length), so that each layer adds about unit variance and the
activations keep the scale of a trained model's; the last norm's weights make logits of deviation 2.5. The
blocks are drawn packed (see `synth_blocks`) and streamed, so the largest preset needs little memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType
from tqdm.auto import tqdm

from minfer.model.errors import ModelFileError
from minfer.model.synth_blocks import CHUNK_BLOCKS, random_blocks
from minfer.model.synth_vocabulary import CHAT_TEMPLATE, toy_vocabulary
from minfer.model.whole_file import whole_file

_T = GGMLQuantizationType
_LOGIT_STD = 2.5
_WORKERS = 2
_AHEAD = 8  # chunks drawn ahead of the writer


@dataclass(frozen=True)
class Preset:
    """Sizes of a qwen2 model; `first_special` is the id of its <|endoftext|>."""

    hidden: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    first_special: int
    context_length: int
    tied_output: bool


# The Qwen2.5 shapes are those of the published models (their config.json). The smaller two tie the output to
# the embedding, which is how llama.cpp converts them; the files that Qwen publishes hold the matrix twice.
PRESETS = {
    "qwen2-tiny": Preset(256, 2, 2, 1, 128, 768, 512, 509, 2048, tied_output=False),
    "qwen2.5-0.5b": Preset(896, 24, 14, 2, 64, 4864, 151936, 151643, 32768, tied_output=True),
    "qwen2.5-1.5b": Preset(1536, 28, 12, 2, 128, 8960, 151936, 151643, 32768, tied_output=True),
    "qwen2.5-7b": Preset(3584, 28, 28, 4, 128, 18944, 152064, 151643, 32768, tied_output=False),
}


@dataclass(frozen=True)
class _Tensor:
    """A tensor to write: for F32 vectors `mean` and `std` of its elements, for matrices mean 0."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0

    @property
    def n_blocks(self) -> int:
        return prod(self.shape) // GGML_QUANT_SIZES[self.type][0]

    @property
    def nbytes(self) -> int:
        return self.n_blocks * GGML_QUANT_SIZES[self.type][1]


def synth(preset: str, path: str | os.PathLike[str], seed: int = 0, progress: bool = True) -> Path:
    """Write the model `preset` (a name in PRESETS) with random weights to `path`; returns the path.

    The same preset and seed give the same bytes. Raises ModelFileError for an unknown preset, a negative
    seed, or a path that cannot be written; the file appears under its name only when it is whole.
    """
    if preset not in PRESETS:
        raise ModelFileError(f"{preset}: no such preset (presets: {', '.join(PRESETS)})")
    if seed < 0:
        raise ModelFileError(f"seed {seed} is negative; seeds are 0 or larger")
    path = Path(path)
    tensors = list(_tensors(PRESETS[preset]))
    total = sum(_padded(tensor.nbytes) for tensor in tensors)
    with whole_file(path, total) as unfinished:
        _write_header(unfinished, preset, seed, tensors)
        bar = tqdm(total=total, desc=path.name, unit="B", unit_scale=True, disable=not progress)
        with unfinished.open("ab") as out, bar:
            out.write(bytes(-out.tell() % GGUF_DEFAULT_ALIGNMENT))
            for piece in _in_order(_pieces(tensors, seed)):
                bar.update(out.write(piece))
    return path


def q4_k_m_type(part: str, layer: int, n_layers: int, row: int, tied_output: bool) -> GGMLQuantizationType:
    """The type that llama.cpp's Q4_K_M recipe gives a matrix with rows of `row` weights.

    part is the tensor's name without "blk.N." and ".weight". Rows that are no multiple of 256 fall back from
    Q4_K to Q5_0 and from Q6_K to Q8_0.
    """
    is_output = part == "output" or (tied_output and part == "token_embd")
    more_bits = layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2
    if is_output or (part in ("attn_v", "ffn_down") and more_bits):
        return _T.Q6_K if row % 256 == 0 else _T.Q8_0
    return _T.Q4_K if row % 256 == 0 else _T.Q5_0


def _tensors(preset: Preset) -> Iterator[_Tensor]:
    """All tensors in file order."""
    hidden, ffn = preset.hidden, preset.ffn
    q_dim, kv_dim = preset.n_heads * preset.head_dim, preset.n_kv_heads * preset.head_dim

    def matrix(part: str, rows: int, row: int, layer: int | None = None) -> _Tensor:
        kind = q4_k_m_type(part, layer or 0, preset.n_layers, row, preset.tied_output)
        prefix = "" if layer is None else f"blk.{layer}."
        return _Tensor(f"{prefix}{part}.weight", kind, (rows, row), row**-0.5)

    yield matrix("token_embd", preset.vocab_size, hidden)
    for layer in range(preset.n_layers):
        yield _Tensor(f"blk.{layer}.attn_norm.weight", _T.F32, (hidden,), 0.1, mean=1.0)
        for part, rows in (("attn_q", q_dim), ("attn_k", kv_dim), ("attn_v", kv_dim)):
            yield matrix(part, rows, hidden, layer)
            yield _Tensor(f"blk.{layer}.{part}.bias", _T.F32, (rows,), 0.1)
        yield matrix("attn_output", hidden, q_dim, layer)
        yield _Tensor(f"blk.{layer}.ffn_norm.weight", _T.F32, (hidden,), 0.1, mean=1.0)
        yield matrix("ffn_gate", ffn, hidden, layer)
        yield matrix("ffn_up", ffn, hidden, layer)
        yield matrix("ffn_down", hidden, ffn, layer)
    yield _Tensor("output_norm.weight", _T.F32, (hidden,), 0.1, mean=_LOGIT_STD)
    if not preset.tied_output:
        yield matrix("output", preset.vocab_size, hidden)


def _write_header(path: Path, name: str, seed: int, tensors: list[_Tensor]) -> None:
    preset = PRESETS[name]
    vocabulary = toy_vocabulary(preset.vocab_size, preset.first_special)
    writer = GGUFWriter(path, "qwen2")
    writer.add_type("model")
    writer.add_name(f"{name}, synthetic, seed {seed}")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(2)
    writer.add_block_count(preset.n_layers)
    writer.add_context_length(preset.context_length)
    writer.add_embedding_length(preset.hidden)
    writer.add_feed_forward_length(preset.ffn)
    writer.add_head_count(preset.n_heads)
    writer.add_head_count_kv(preset.n_kv_heads)
    writer.add_key_length(preset.head_dim)
    writer.add_value_length(preset.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(preset.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.first_special)
    writer.add_pad_token_id(vocabulary.first_special)
    writer.add_eos_token_id(vocabulary.first_special + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for tensor in tensors:
        writer.add_tensor_info(tensor.name, tensor.shape, np.float32, tensor.nbytes, raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _pieces(tensors: list[_Tensor], seed: int) -> Iterator[partial[bytes]]:
    """Functions that make the tensor data piece by piece; each depends on its own seed only."""
    for index, tensor in enumerate(tensors):
        if tensor.type == _T.F32:
            yield partial(_vector, tensor, (seed, index))
        for chunk in range(0 if tensor.type == _T.F32 else -(-tensor.n_blocks // CHUNK_BLOCKS)):
            n_blocks = min(CHUNK_BLOCKS, tensor.n_blocks - chunk * CHUNK_BLOCKS)
            yield partial(_matrix_chunk, tensor, n_blocks, (seed, index, chunk))
        if padding := _padded(tensor.nbytes) - tensor.nbytes:
            yield partial(bytes, padding)


def _vector(tensor: _Tensor, seed: tuple[int, ...]) -> bytes:
    values = np.random.default_rng(seed).normal(tensor.mean, tensor.std, tensor.shape)
    return values.astype("<f4").tobytes()


def _matrix_chunk(tensor: _Tensor, n_blocks: int, seed: tuple[int, ...]) -> bytes:
    return random_blocks(tensor.type, n_blocks, tensor.std, seed).tobytes()


def _in_order(pieces: Iterator[partial[bytes]]) -> Iterator[bytes]:
    """Results in order, made a few ahead by threads: NumPy draws and copies without holding the GIL."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        ahead: deque = deque()
        for piece in pieces:
            ahead.append(pool.submit(piece))
            if len(ahead) > _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _padded(nbytes: int) -> int:
    return -(-nbytes // GGUF_DEFAULT_ALIGNMENT) * GGUF_DEFAULT_ALIGNMENT
