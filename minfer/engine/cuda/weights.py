"""Weights on the device: blocks as they are in the file, f16 copies made of them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from minfer.cuda.block_dots import DOTS
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.dequantize import DequantizeConfig, dequantize
from minfer.engine.backend import LayerWeights, Progress, Weights
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import kernel
from minfer.engine.cuda.plan import MatrixShape, MemoryPlan
from minfer.model.model import LayerTensors, Model


@dataclass(frozen=True)
class Run:
    """Neighbouring rows of a stack in one format: what one launch of a block kernel takes.

    Attributes:
        blocks: uint8 (rows, row bytes).
        negative: whether some block's d is below zero, as no quantizer of GGML's writes it; looked for in
            Q4_K blocks that W4A8 would read, which cannot multiply them.
    """

    format: str
    rows: int
    columns: int
    blocks: Any
    negative: bool = False

    @property
    def quantized(self) -> bool:
        """Whether the decode kernels want q8 activations."""
        return DOTS[self.format].quantized

    def cut(self, start: int, stop: int) -> Run:
        """Rows start to stop."""
        return replace(self, rows=stop - start, blocks=self.blocks[start:stop])

    def dequantize(self, device: Device, out: Any) -> None:
        """Write these rows as f16 (rows, columns)."""
        config = DequantizeConfig(self.format, self.columns)
        device.launch(kernel(dequantize, config), config.grid(self.rows), self.blocks, out)


@dataclass(frozen=True)
class Stack:
    """Matrices one above the other, multiplied at once.

    Attributes:
        half: f16 (rows, columns), or None where only blocks are kept.
        bias: f32 (rows,) or None; the kernel after the product adds it.
    """

    runs: tuple[Run, ...]
    rows: int
    columns: int
    half: Any = None
    bias: Any = None

    @cached_property
    def shapes(self) -> tuple[tuple[str, int], ...]:
        """(format, columns) of every run."""
        return tuple((run.format, run.columns) for run in self.runs)

    def cut(self, start: int, stop: int) -> Stack:
        """Rows start to stop of it, in the same memory."""
        runs, first = [], 0
        for run in self.runs:
            low, high = max(start - first, 0), min(stop - first, run.rows)
            if low < high:
                runs.append(run.cut(low, high))
            first += run.rows
        half = None if self.half is None else self.half[start:stop]
        bias = None if self.bias is None else self.bias[start:stop]
        return Stack(tuple(runs), stop - start, self.columns, half, bias)

    def dequantize(self, device: Device, out: Any) -> None:
        """Write all rows as f16 (rows, columns)."""
        first = 0
        for run in self.runs:
            run.dequantize(device, out[first : first + run.rows])
            first += run.rows


def has_negative_scales(blocks: np.ndarray) -> bool:
    """Whether the d of some Q4_K block has its sign bit set; blocks: uint8, whole ones of 144 bytes."""
    return bool((np.asarray(blocks).reshape(-1, BLOCKS["Q4_K"].size)[:, 1] & 0x80).any())


def matrix_shape(model: Model, name: str) -> MatrixShape:
    """A tensor as it will lie on the device: formats that no kernel reads become F16."""
    tensor = model.file.tensors[name]
    kind = tensor.type.name
    return MatrixShape(kind if kind in BLOCKS else "F16", *tensor.shape)


def layer_stacks(names: LayerTensors) -> dict[str, tuple[str, ...]]:
    """A layer's matrices by the products they take part in."""
    return {
        "qkv": (names.q, names.k, names.v),
        "o": (names.o,),
        "gate_up": (names.gate, names.up),
        "down": (names.down,),
    }


class Loader:
    """Brings a model's weights to the device."""

    def __init__(self, device: Device, model: Model, plan: MemoryPlan, progress: Progress | None):
        self.device, self.model, self.plan, self.progress = device, model, plan, progress
        self.done = 0
        self.total = sum(tensor.nbytes for tensor in model.file.tensors.values())

    def load(self) -> tuple[Weights, Run]:
        """All weights, and the embedding table."""
        config, model = self.model.config, self.model
        embedding = self.stack((model.embedding,), half=False)
        output = embedding
        if model.output != model.embedding:
            output = self.stack((model.output,), half=False)
        q_dim = config.n_heads * config.head_dim
        layers = []
        for index in range(config.n_layers):
            names = model.layer(index)
            biases = (names.q_bias, names.k_bias, names.v_bias)
            stacks = {part: self.stack(tensors) for part, tensors in layer_stacks(names).items()}
            qkv = replace(stacks["qkv"], bias=self.biases(biases, names.q_norm is not None))
            layers.append(
                LayerWeights(
                    attn_norm=self.vector(names.attn_norm),
                    qkv=qkv,
                    q=qkv.cut(0, q_dim),
                    kv=qkv.cut(q_dim, qkv.rows),
                    o=stacks["o"],
                    ffn_norm=self.vector(names.ffn_norm),
                    gate_up=stacks["gate_up"],
                    down=stacks["down"],
                    q_norm=None if names.q_norm is None else self.vector(names.q_norm),
                    k_norm=None if names.k_norm is None else self.vector(names.k_norm),
                )
            )
        weights = Weights(layers, self.vector(model.output_norm), output)
        self.device.end_uploads()
        self._advance(self.total - self.done)
        return weights, embedding.runs[0]

    def stack(self, names: Sequence[str], half: bool = True) -> Stack:
        """Upload matrices; where the plan has room, make their f16 copy."""
        shapes = [matrix_shape(self.model, name) for name in names]
        groups: list[list[int]] = []
        for i, shape in enumerate(shapes):
            if groups and shapes[groups[-1][-1]].format == shape.format:
                groups[-1].append(i)
            else:
                groups.append([i])
        runs, columns = [], shapes[0].columns
        for group in groups:
            rows = sum(shapes[i].rows for i in group)
            row_bytes = BLOCKS[shapes[group[0]].format].row_bytes(columns)
            blocks, first = self.device.empty((rows, row_bytes), np.uint8), 0
            for i in group:
                self._upload(blocks[first : first + shapes[i].rows], names[i], shapes[i])
                first += shapes[i].rows
            negative = self.plan.activations["int8"] > 0 and any(
                shapes[i].format == "Q4_K" and has_negative_scales(self.model.file.raw(names[i]))
                for i in group
            )
            runs.append(Run(shapes[group[0]].format, rows, columns, blocks, negative))
        made = Stack(tuple(runs), sum(shape.rows for shape in shapes), columns)
        if half and self.plan.copies([(shape.format, shape.columns) for shape in shapes]):
            copy = self.device.empty((made.rows, columns), np.float16)
            made.dequantize(self.device, copy)
            made = replace(made, half=copy)
        return made

    def vector(self, name: str) -> Any:
        """A vector as f32."""
        return self._array(self._values(name))

    def biases(self, names: Sequence[str | None], zeros: bool) -> Any:
        """Vectors one behind the other as f32; None, or zeros, where the model has none."""
        if names[0] is not None:
            return self._array(np.concatenate([self._values(name) for name in names]))
        config = self.model.config
        rows = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        return self._array(np.zeros(rows, np.float32)) if zeros else None

    def _values(self, name: str) -> np.ndarray:
        self._advance(self.model.file.tensors[name].nbytes)
        return np.ascontiguousarray(self.model.file.dequantized(name).reshape(-1), np.float32)

    def _array(self, values: np.ndarray) -> Any:
        array = self.device.empty(values.shape, values.dtype)
        self.device.write(array, values)
        return array

    def _upload(self, target: Any, name: str, shape: MatrixShape) -> None:
        tensor = self.model.file.tensors[name]
        if shape.format == tensor.type.name:
            source = self.model.file.raw(name)
        else:
            source = self.model.file.dequantized(name).astype(np.float16)
        self.device.upload(target, source)
        self._advance(tensor.nbytes)

    def _advance(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress is not None:
            self.progress("loading", self.done, self.total)
