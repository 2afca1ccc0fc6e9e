"""Weights of the host backend: addresses into the mapped file, for the formats that the kernels read
directly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from minfer.engine.backend import LayerWeights, Weights
from minfer.engine.errors import EngineError
from minfer.engine.host.matvec import SUPPORTED, blocks_in_row
from minfer.engine.host.simd import LANES
from minfer.model.model import Model


def address(array: np.ndarray) -> int:
    """Address of an array's first element."""
    return array.__array_interface__["data"][0]


@dataclass(frozen=True)
class Matrix:
    """A weight matrix (rows, columns) in its file format. `data` and `bias` (float32 (rows,)) keep the memory
    alive.
    """

    type: Type
    rows: int
    columns: int
    data: np.ndarray = field(repr=False)  # uint8 (rows, row_bytes)
    bias: np.ndarray | None = field(repr=False, default=None)
    address: int = field(init=False)
    bias_address: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "address", address(self.data))
        object.__setattr__(self, "bias_address", 0 if self.bias is None else address(self.bias))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.data.shape[1]

    @property
    def blocks(self) -> int:
        """Blocks of a row, as the kernels count them."""
        return blocks_in_row(self.type, self.columns)


def load_weights(model: Model) -> tuple[Weights, Matrix]:
    """All layers' weights, and the embedding. Reads nothing of the matrices that the kernels take as they
    are.

    Matrices of another type become float32 in memory. Raises EngineError for widths the kernels cannot take.
    """
    config = model.config
    for name, width in (("embedding_length", config.hidden), ("feed_forward_length", config.ffn),
                        ("head size", config.head_dim)):  # fmt: skip
        if width % LANES:
            raise EngineError(f"{name} is {width}: the host backend needs a multiple of {LANES}")
    loaded: dict[str, Matrix] = {}

    def matrix(name: str, bias: str | None = None) -> Matrix:
        if name not in loaded:
            tensor = model.file.tensors[name]
            rows, columns = tensor.shape
            kind, data = tensor.type, None
            if kind in SUPPORTED:
                data = model.file.raw(name)
            else:
                kind, data = Type.F32, model.file.dequantized(name).view(np.uint8).reshape(rows, -1)
            loaded[name] = Matrix(kind, rows, columns, data, None if bias is None else vector(bias))
        return loaded[name]

    def vector(name: str | None) -> np.ndarray | None:
        return None if name is None else np.ascontiguousarray(model.file.dequantized(name).reshape(-1))

    layers = []
    for index in range(config.n_layers):
        names = model.layer(index)
        q, k, v = matrix(names.q, names.q_bias), matrix(names.k, names.k_bias), matrix(names.v, names.v_bias)
        layers.append(
            LayerWeights(
                attn_norm=vector(names.attn_norm),
                qkv=(q, k, v),
                q=(q,),
                kv=(k, v),
                o=(matrix(names.o),),
                ffn_norm=vector(names.ffn_norm),
                gate_up=(matrix(names.gate), matrix(names.up)),
                down=(matrix(names.down),),
                q_norm=vector(names.q_norm),
                k_norm=vector(names.k_norm),
            )
        )
    weights = Weights(layers, vector(model.output_norm), (matrix(model.output),))
    return weights, matrix(model.embedding)
