"""A decoded token in one kernel: a step of its ladder, or one with fields of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.work import QWEN25_7B, ModelShape
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel
from minfer.campaign.workloads.token_model import EPS, TABLE, TokenModel
from minfer.cuda.elementwise import EmbeddingConfig, embedding
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.token import LAST_STEP, TOKEN_STEPS, TokenConfig, decode_token
from minfer.cuda.token.config import most_blocks
from minfer.cuda.token.schedule import table
from minfer.engine.cuda.routes import Route, choose_route

TUNED = ("warps", *TOKEN_STEPS[LAST_STEP])
"""Fields of `minfer.cuda.token.TokenConfig` that a model does not decide."""


@dataclass(frozen=True)
class Rung:
    """A step of `minfer.cuda.token.TOKEN_STEPS`, with fields that are changed: (name, value) pairs."""

    step: str = LAST_STEP
    changes: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.step not in TOKEN_STEPS:
            raise ConfigRefused(f"token: no step {self.step!r}: choose one of {', '.join(TOKEN_STEPS)}")
        for name, _ in self.changes:
            if name not in TUNED:
                raise ConfigRefused(f"token: {name} cannot be changed here: choose among {', '.join(TUNED)}")

    @classmethod
    def of(cls, step: str = LAST_STEP, **changes: Any) -> Rung:
        """With its changes as keywords."""
        return cls(step, tuple(changes.items()))

    def __str__(self) -> str:
        return ", ".join([self.step, *(f"{name}={value}" for name, value in self.changes)])

    def config(self, shape: ModelShape, entries: int, sms: int) -> TokenConfig:
        """The kernel's config for a model with biases, on so many multiprocessors."""
        attended = shape.heads * shape.head_dim
        return TokenConfig(
            shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim, shape.hidden, shape.ffn, entries,
            bias=True, blocks=min(sms, most_blocks(shape.hidden, attended, shape.ffn)),
            **TOKEN_STEPS[self.step] | dict(self.changes),
        )  # fmt: skip


@dataclass(frozen=True)
class Token(Workload):
    """The embedding of a token, then layers and output matrix in one kernel; config: a `Rung`. With a model
    (-m) whole tokens are decoded: tokens a second of both sides, and their logits beside those of the
    separate kernels.

    Attributes:
        position: tokens in the caches before, of the measured case.
        tolerance: an activation that is quantized from another f32 may round the other way.
    """

    position: int = 64
    tolerance: float = 2e-2

    phase: ClassVar = "decode"
    small: ClassVar = (
        Case.of(
            "a layer of 256 and 512, 2 tokens after 5",
            heads=2, kv_heads=1, head_dim=128, hidden=256, ffn=512, vocab=70, layers=1, position=5, steps=2,
            blocks=4,
        ),
    )  # fmt: skip

    @property
    def cases(self) -> tuple[Case, ...]:
        """Four layers of the 7B and 16,384 rows of its output matrix: a seventh of it."""
        s, layers, vocab = QWEN25_7B, 4, 16384
        case = Case.of(
            f"{layers} of {s.layers} layers of the 7B, {vocab:,} logits, {self.position} tokens before",
            s.layers // layers, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, hidden=s.hidden,
            ffn=s.ffn, vocab=vocab, layers=layers, position=self.position, steps=1, blocks=0,
        )  # fmt: skip
        return (case,)

    def shrunk(self, config: Rung) -> Rung:
        """With two warps that multiply: every thread of the simulator waits for all others."""
        others = tuple((name, value) for name, value in config.changes if name != "warps")
        return replace(config, changes=(*others, ("warps", 2)))

    def input_shapes(self, case: Case) -> dict:
        return _model(case).shapes()

    def inputs(self, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return _model(case).arrays(rng)

    def prepared(self, config: Rung, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The schedule, and workspaces, which begin as zeros: what the launches leave there differs by
        config."""
        model, shape = _model(case), _model(case).shape
        made = self._config(config, case, 132)
        zeros = {
            "residual": (made.sums_shape(shape.hidden), np.float32),
            "qkv": (made.sums_shape(model.q_dim + 2 * model.kv_dim), np.float32),
            "attended": (made.exchanged_bytes(model.q_dim), np.uint8),
            "activated": (made.exchanged_bytes(shape.ffn), np.uint8),
            "partial": (made.partial_shape, np.float32),
            "statistics": (made.statistics_shape, np.float32),
            "counters": (made.groups, np.uint32),
            "barriers": (3, np.uint32),
            "best": (2, np.uint32),
            "state": (3, np.int32),
        }
        made_of = {name: np.zeros(size, dtype) for name, (size, dtype) in zeros.items()}
        return {"schedule": table(model.schedule(), made)} | made_of

    def outputs(self, config: Rung, case: Case) -> dict:
        return {
            "logits": ((case["steps"], case["vocab"]), "float32"),
            "embedded": ((1, case["hidden"]), "float32"),
        }

    compared: ClassVar = ("logits",)

    def launches(self, config: Rung, case: Case, arrays: Mapping[str, Any], device: Any) -> list[Launch]:
        made = self._config(config, case, device.sms)
        embed, found = EmbeddingConfig(TABLE, case["hidden"]), []
        embedded = arrays["embedded"][0]
        residual = arrays["residual"] if made.tagged else embedded
        names = ("schedule", "weights", "vectors", "keys", "values")
        work = [arrays[name] for name in ("partial", "statistics", "counters", "barriers", "best")]
        state = arrays["state"]
        for step in range(case["steps"]):
            ids, positions = arrays["ids"][step : step + 1], arrays["positions"][step : step + 1]
            first = kernel(embedding, embed), embed.grid(1)
            found.append(Launch.of(*first, arrays["embedding"], ids, arrays["embedded"], case["steps"]))
            found.append(
                Launch.of(
                    kernel(decode_token, made), made.grid, *(arrays[name] for name in names), embedded,
                    residual, arrays["qkv"], arrays["attended"], arrays["activated"], arrays["logits"][step],
                    positions, arrays["rope_table"], *work, state[:2], ids, state[2:], EPS,
                    case["head_dim"] ** -0.5, 0,
                )
            )  # fmt: skip
        return found

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"logits": _model(case).logits(inputs)}

    def work(self, case: Case) -> Work:
        """Every weight once, and the rows of the caches."""
        model = _model(case)
        cached = 4.0 * case["layers"] * model.kv_dim * sum(range(case["position"], model.capacity))
        return Work(0.0, model.weight_bytes * case["steps"] + cached)

    def route(self, config: Rung, arch: str) -> Route | None:
        if arch != "sm_90a":
            return None
        route = choose_route("f16-wgmma", arch, {})
        return replace(
            route, name=f"decode: {config}", token_kernel=config.step, token_changes=config.changes
        )

    def _config(self, config: Rung, case: Case, sms: int) -> TokenConfig:
        model = _model(case)
        return config.config(model.shape, len(model.schedule()), case["blocks"] or sms)


@lru_cache(8)
def _model(case: Case) -> TokenModel:
    sizes = dict(case.sizes)
    shape = ModelShape(**{field.name: sizes[field.name] for field in fields(ModelShape)})
    return TokenModel(shape, case["position"], case["steps"])
