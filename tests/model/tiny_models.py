"""Small model files for tests: headers built by hand, whole models through the `gguf` package's writer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, TokenType
from gguf.constants import GGMLQuantizationType, GGUFValueType

from minfer.model.pretokenizers import byte_characters
from minfer.model.quants import pack

V = GGUFValueType
_FORMATS = {
    V.UINT8: "B",
    V.INT8: "b",
    V.UINT16: "H",
    V.INT16: "h",
    V.UINT32: "I",
    V.INT32: "i",
    V.UINT64: "Q",
    V.INT64: "q",
    V.FLOAT32: "f",
    V.FLOAT64: "d",
    V.BOOL: "B",
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: GGUFValueType, content: Any) -> bytes:
    """A value without its type; an array is given as (element type, list)."""
    if kind == V.STRING:
        return string(content)
    if kind == V.ARRAY:
        element, items = content
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, item) for item in items)
    return struct.pack("<" + _FORMATS[kind], content)


def key(name: str | bytes, kind: GGUFValueType, content: Any) -> bytes:
    return string(name) + struct.pack("<I", kind) + value(kind, content)


def tensor(name: str, sizes: Sequence[int], kind: int, offset: int = 0) -> bytes:
    """A tensor record; `sizes` in file order (row length first)."""
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def gguf_bytes(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts can be made to lie."""
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + (bytes(-len(head) % alignment) + data if data else b"")


def write_model(
    path: Path,
    arch: str = "qwen2",
    *,
    settings: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    tied: bool = False,
    bias: bool = True,
    tokens: bool = True,
    shards: int = 1,
) -> Path:
    """A model of 2 layers, hidden 32, 4 heads of 8, 2 kv heads, FFN 64, 261 tokens.

    `settings` overrides or (None) removes `ARCH.key` values, `tensors` adds, replaces or (None) removes
    tensors. Returns the path of the file to open.
    """
    n_tensors = 2 * (9 + 3 * (arch == "qwen2" and bias) + 2 * (arch == "qwen3")) + 2 + (not tied)
    per_shard = 0 if shards == 1 else -(-n_tensors // shards)
    writer = GGUFWriter(path, arch, split_max_tensors=per_shard)
    values = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    } | (settings or {})
    for name, content in values.items():
        add = {
            str: writer.add_string,
            int: writer.add_uint32,
            float: writer.add_float32,
            bool: writer.add_bool,
            list: writer.add_array,
        }
        if content is not None:
            add[type(content)](f"{arch}.{name}", content)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([*byte_characters(), "he", "ll", "hell", "hello", "<|im_end|>"])
        writer.add_token_types([TokenType.NORMAL] * 260 + [TokenType.CONTROL])
        writer.add_token_merges(["h e", "l l", "he ll", "hell o"])
        writer.add_eos_token_id(260)
    arrays = model_arrays(arch, tied, bias) | (tensors or {})
    for name, array in arrays.items():
        if array is None:
            continue
        if array.ndim == 2 and kind != GGMLQuantizationType.F32:
            writer.add_tensor(name, pack(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if shards == 1 else path.with_name(f"{path.stem}-00001-of-{shards:05d}.gguf")


def model_arrays(arch: str, tied: bool = False, bias: bool = True) -> dict[str, np.ndarray]:
    """The weights that `write_model` writes, the same on every call."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return np.ones(size, np.float32)

    arrays = {"token_embd.weight": matrix(261, 32)}
    for layer in range(2):
        prefix = f"blk.{layer}."
        arrays[prefix + "attn_norm.weight"] = norm(32)
        for part, rows in (("q", 32), ("k", 16), ("v", 16)):
            arrays[f"{prefix}attn_{part}.weight"] = matrix(rows, 32)
            if arch == "qwen2" and bias:
                arrays[f"{prefix}attn_{part}.bias"] = matrix(rows)
            if arch == "qwen3" and part in "qk":
                arrays[f"{prefix}attn_{part}_norm.weight"] = norm(8)
        arrays[prefix + "attn_output.weight"] = matrix(32, 32)
        arrays[prefix + "ffn_norm.weight"] = norm(32)
        arrays[prefix + "ffn_gate.weight"] = matrix(64, 32)
        arrays[prefix + "ffn_up.weight"] = matrix(64, 32)
        arrays[prefix + "ffn_down.weight"] = matrix(32, 64)
    arrays["output_norm.weight"] = norm(32)
    if not tied:
        arrays["output.weight"] = matrix(261, 32)
    return arrays
