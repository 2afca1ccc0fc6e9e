"""A model: an opened file, its configuration, and the names of the tensors that play each part."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from minfer.model.config import ModelConfig
from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.quants import can_dequantize, dequantizable_types
from minfer.model.registry import resolve
from minfer.model.rope import frequencies

if TYPE_CHECKING:
    from minfer.model.tokenizer import Tokenizer

_ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True)
class LayerTensors:
    """Tensor names of one layer; None where the architecture has no such tensor."""

    attn_norm: str
    q: str
    k: str
    v: str
    o: str
    ffn_norm: str
    gate: str
    up: str
    down: str
    q_bias: str | None = None
    k_bias: str | None = None
    v_bias: str | None = None
    q_norm: str | None = None
    k_norm: str | None = None

    def names(self) -> list[str]:
        """The names that are present."""
        values = (getattr(self, field.name) for field in fields(self))
        return [name for name in values if name is not None]


class Model:
    """A model file whose every needed tensor is present and of the right shape.

    file           the opened GGUFFile
    config         ModelConfig
    embedding      name of the token embedding, (vocab, hidden)
    output         name of the output projection, (vocab, hidden); the embedding's when they are tied
    output_norm    name of the last norm, (hidden,)
    rope_freqs     float32 (head_dim / 2,) divisors of the RoPE frequencies, or None
    chat_template  the Jinja template, or None
    """

    embedding = "token_embd.weight"
    output_norm = "output_norm.weight"

    def __init__(self, file: GGUFFile):
        self.file = file
        try:
            self.config = ModelConfig.from_metadata(file.metadata, file.tensors)
            self.output = self.embedding if self.config.tied_output else "output.weight"
            self._check_tensors()
            frequencies(self.config, self.rope_freqs)  # raises when they overflow
        except ModelFileError as error:
            raise error.within(file.paths[0]) from None

    @classmethod
    def load(cls, path_or_name: str | os.PathLike[str]) -> Model:
        """Open a model file, or a model pulled by name; raises ModelFileError for whatever is wrong."""
        return cls(GGUFFile.open(resolve(path_or_name)))

    def layer(self, index: int) -> LayerTensors:
        """The tensor names of layer `index`, 0 to n_layers - 1."""
        prefix = f"blk.{index}."
        optional = {}
        if self.config.has_qkv_bias:
            optional |= {f"{part}_bias": f"{prefix}attn_{part}.bias" for part in "qkv"}
        if self.config.has_qk_norm:
            optional |= {f"{part}_norm": f"{prefix}attn_{part}_norm.weight" for part in "qk"}
        return LayerTensors(
            attn_norm=prefix + "attn_norm.weight",
            q=prefix + "attn_q.weight",
            k=prefix + "attn_k.weight",
            v=prefix + "attn_v.weight",
            o=prefix + "attn_output.weight",
            ffn_norm=prefix + "ffn_norm.weight",
            gate=prefix + "ffn_gate.weight",
            up=prefix + "ffn_up.weight",
            down=prefix + "ffn_down.weight",
            **optional,
        )

    @cached_property
    def rope_freqs(self) -> np.ndarray | None:
        if _ROPE_FREQS not in self.file.tensors:
            return None
        divisors = self.file.dequantized(_ROPE_FREQS)
        if not (np.isfinite(divisors) & (divisors > 0)).all():
            raise ModelFileError(f"tensor {_ROPE_FREQS!r} has a divisor that is not a number above 0")
        return divisors

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from minfer.model.tokenizer import Tokenizer

        return Tokenizer.from_file(self.file)

    @property
    def chat_template(self) -> str | None:
        template = self.file.metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelFileError(f"{self.file.paths[0]}: tokenizer.chat_template is not a string")
        return template

    def _check_tensors(self) -> None:
        config = self.config
        self._check(self.embedding, (config.vocab_size, config.hidden))
        self._check(self.output, (config.vocab_size, config.hidden))
        self._check(self.output_norm, (config.hidden,))
        used = {self.embedding, self.output, self.output_norm}
        if _ROPE_FREQS in self.file.tensors:
            self._check(_ROPE_FREQS, (config.head_dim // 2,))
            used.add(_ROPE_FREQS)
        q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        shapes = {
            "attn_norm": (config.hidden,),
            "q": (q_dim, config.hidden),
            "k": (kv_dim, config.hidden),
            "v": (kv_dim, config.hidden),
            "o": (config.hidden, q_dim),
            "ffn_norm": (config.hidden,),
            "gate": (config.ffn, config.hidden),
            "up": (config.ffn, config.hidden),
            "down": (config.hidden, config.ffn),
            "q_bias": (q_dim,),
            "k_bias": (kv_dim,),
            "v_bias": (kv_dim,),
            "q_norm": (config.head_dim,),
            "k_norm": (config.head_dim,),
        }
        for index in range(config.n_layers):
            layer = self.layer(index)
            for part, shape in shapes.items():
                name = getattr(layer, part)
                if name is not None:
                    self._check(name, shape)
                    used.add(name)
        unused = next((name for name in self.file.tensors if name not in used), None)
        if unused:
            raise ModelFileError(
                f"tensor {unused!r} has no place in a {config.architecture} model of this kind"
            )

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"tensor {name!r} is missing; its shape would be {shape}")
        if tensor.shape != shape:
            raise ModelFileError(f"tensor {name!r} has shape {tensor.shape}, not {shape}")
        if not can_dequantize(tensor.type):
            names = ", ".join(kind.name for kind in dequantizable_types())
            raise ModelFileError(f"tensor {name!r} has type {tensor.type.name} (supported: {names})")
