"""What a model file holds and the memory that it takes to run, as data for `minfer inspect`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gguf.constants import GGMLQuantizationType, GGUFValueType

from minfer.model.config import ModelConfig
from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.gguf_header import Metadata
from minfer.model.model import Model


@dataclass(frozen=True)
class TypeUse:
    """The tensors of one type: how many, with how many weights and packed bytes."""

    type: GGMLQuantizationType
    count: int
    n_elements: int
    nbytes: int


@dataclass(frozen=True)
class ModelSummary:
    """A model file at a glance.

    metadata       key -> text; an array is shown as its length and element type
    types          by packed bytes, largest first
    weights_bytes  packed bytes of all tensors
    config         None when the file is no model that runs, for the reason in `problem`
    n_ctx, kv_bytes  a context length and the bytes of its f16 KV cache; None without a config
    """

    paths: tuple[str, ...]
    version: int
    file_bytes: int
    metadata: dict[str, str]
    types: tuple[TypeUse, ...]
    n_tensors: int
    n_elements: int
    weights_bytes: int
    config: ModelConfig | None
    problem: str | None
    n_ctx: int | None
    kv_bytes: int | None


def kv_cache_bytes(config: ModelConfig, n_ctx: int, element_bytes: int = 2) -> int:
    """Bytes of the keys and values of `n_ctx` tokens in all layers; an element has 2 for f16, 4 for f32."""
    return 2 * config.n_layers * n_ctx * config.n_kv_heads * config.head_dim * element_bytes


def summarize(file: GGUFFile, n_ctx: int | None = None) -> ModelSummary:
    """Describe an opened file. `n_ctx` defaults to the context that the model was trained for."""
    by_type = defaultdict(list)
    for tensor in file.tensors.values():
        by_type[tensor.type].append(tensor)
    types = [
        TypeUse(kind, len(tensors), sum(t.n_elements for t in tensors), sum(t.nbytes for t in tensors))
        for kind, tensors in by_type.items()
    ]
    config, problem = None, None
    try:
        config = Model(file).config
    except ModelFileError as error:
        problem = str(error)
    if config is not None and n_ctx is None:
        n_ctx = config.context_length
    return ModelSummary(
        paths=tuple(str(path) for path in file.paths),
        version=file.version,
        file_bytes=file.nbytes,
        metadata={key: _text(file.metadata, key) for key in file.metadata},
        types=tuple(sorted(types, key=lambda use: -use.nbytes)),
        n_tensors=len(file.tensors),
        n_elements=sum(use.n_elements for use in types),
        weights_bytes=sum(use.nbytes for use in types),
        config=config,
        problem=problem,
        n_ctx=n_ctx if config else None,
        kv_bytes=kv_cache_bytes(config, n_ctx) if config else None,
    )


def _text(metadata: Metadata, key: str) -> str:
    span = metadata.array_span(key)
    if span is not None:
        return f"[{span.count} x {span.type.name.lower()}]"
    if metadata.type_of(key) == GGUFValueType.FLOAT32:
        return f"{metadata[key]:.7g}"  # no more digits than a float32 has
    return str(metadata[key])
