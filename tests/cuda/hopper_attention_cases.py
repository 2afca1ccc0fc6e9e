"""Launches of Hopper's attention with their expected outputs, for the simulator and for a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from minfer.cuda import reference
from minfer.cuda.attention import HopperAttentionConfig, attention_hopper
from minfer.cuda.kernel import Kernel
from tests.cuda.attention_cases import prefill_inputs
from tests.cuda.parity import poisoned

KINDS = ("random", "bias", "ramp", "jump", "sink", "fall")


def inputs(config: HopperAttentionConfig, nt: int, kv_end: int, kind: str) -> tuple:
    """(q f32, k f16, v f16) whose scores, beside noise, along the cache

    bias: are past f16's range, as Qwen2's biases make them; ramp: grow towards row 0, by 2^8 or so a KV tile;
    jump: are larger by 2^130 and more in rows 0 to 39; sink: are large at row 0 only; fall: are small, far
    below the diagonal's."""
    bias = 300.0 if kind == "bias" else 0.0
    q, k, v = prefill_inputs(nt, kv_end, config.heads, config.kv_heads, config.head_dim, bias)
    if kind in ("random", "bias"):
        return q, k, v
    rows = np.arange(kv_end)
    gain = {
        "ramp": 8 * (1 - rows / kv_end) * min(1, kv_end / 1024),
        "jump": np.where(rows < 40, 8.0, 0.0),
        "sink": np.where(rows == 0, 0.7, 0.0),
        "fall": np.where(rows > kv_end // 2, 8.0, 0.0),
    }[kind]
    signs = np.random.default_rng(1).choice([-1.0, 1.0], config.head_dim)
    q = (q + 2 * signs).astype(np.float16).astype(np.float32)
    return q, (k + gain[:, None, None] * signs).astype(np.float16), v


@dataclass
class HopperCase:
    """`nt` queries at the end of `kv_end` stored rows (default: nt) or at `offset`; the cache is larger, and
    NaN from kv_end on. `out` is what the last run left."""

    config: HopperAttentionConfig
    nt: int
    kv_end: int | None = None
    offset: int | None = None
    kind: str = "random"
    out: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.kv_end = self.nt if self.kv_end is None else self.kv_end
        self.offset = self.kv_end - self.nt if self.offset is None else self.offset
        config, nt, kv_end = self.config, self.nt, self.kv_end
        q, k, v = inputs(config, nt, kv_end, self.kind)
        self.scale = config.head_dim**-0.5
        self.wanted = reference.attention(q, k, v, self.offset, self.scale).reshape(nt, -1)
        self.q = q.reshape(nt, -1).astype(np.float16)
        self.caches = [np.full((kv_end + 5, x[0].size), np.nan, np.float16) for x in (k, v)]
        for cache, rows in zip(self.caches, (k, v), strict=True):
            cache[:kv_end] = rows.reshape(kv_end, -1)
        # As with the mma.sync kernels: f16 weights and values, and an ulp of an f32 score a k16 step.
        largest = np.abs(q).max() * np.abs(k.astype(np.float32)).max()
        score_error = float(config.head_dim / 16 * np.spacing(np.float32(largest)) * self.scale)
        loud = self.kind != "random"
        self.tolerance = 2e-3 + (2 * score_error * float(np.abs(v).max()) if loud else 0.0)

    def __str__(self) -> str:
        return f"{self.config} nt={self.nt} kv={self.kv_end} offset={self.offset} {self.kind}"

    @property
    def kernel(self) -> Kernel:
        return attention_hopper(self.config)

    def check(self) -> None:
        np.testing.assert_allclose(
            self.out.astype(np.float64), self.wanted, 2e-3, self.tolerance, err_msg=str(self)
        )

    def run_simulated(self, sms: int = 2, **options) -> None:
        """Run in the simulator, on so many multiprocessors, and check."""
        from minfer.cuda import simulator

        self.out = poisoned(self.wanted.shape, np.float16)
        arrays = {"q": self.q, "k": self.caches[0], "v": self.caches[1], "out": self.out}
        maps = [simulator.tensor_map(a, *self.config.boxes[name]) for name, a in arrays.items()]
        self._launch(simulator.launch, maps, self.q, self.caches[0], sms, np.copy, options)
        self.check()

    def run_on_gpu(self) -> None:
        """Run twice on the GPU in checked mode, check, and check that both runs agree bit by bit."""
        from minfer.cuda import runtime

        q, k, v = (runtime.to_device(x) for x in (self.q, *self.caches))
        results = []
        for _ in range(2):
            out = runtime.empty(self.wanted.shape, np.float16)
            arrays = {"q": q, "k": k, "v": v, "out": out}
            maps = [runtime.tensor_map(a, *self.config.boxes[name]) for name, a in arrays.items()]
            with runtime.checked():
                self._launch(runtime.launch, maps, q, k, runtime.device().sms, runtime.to_device, {})
            results.append(out.to_host())
        self.out = results[0]
        self.check()
        np.testing.assert_array_equal(*(x.view(np.uint16) for x in results), err_msg=str(self))

    def _launch(self, launch, maps, q, k, sms, place, options) -> None:
        lengths = self.nt, self.offset, self.kv_end
        order = place(self.config.successors(*lengths, sms))
        grid = self.config.grid(self.nt, sms)
        launch(self.kernel, grid, *maps, order, q, k, *lengths, self.scale, **options)
