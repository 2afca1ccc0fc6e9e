"""What other engines reach on the same GPU and model shapes (data/reference): the lines to pass."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from minfer.arithmetic.reference import FOLDER

LLAMACPP_H200 = FOLDER / "llamacpp-h200.json"


@dataclass(frozen=True)
class Peer:
    """An engine's llama-bench figures.

    Attributes:
        name: of the engine. what: how it was built, on what, with which model, in its own words.
        device, driver, date: where and when.
        tok_s: test -> (mean, standard deviation) in tokens a second. Tests are called as llama-bench calls
            them, with the micro-batch where it was varied: "pp2048_ub2048", "tg128".
        us_per_gmac: what its products take, by kernel.
        prefill_ms: milliseconds of a prefill of 2048 tokens, by kernels.
    """

    name: str
    what: str
    device: str
    driver: str
    date: str
    tok_s: dict[str, tuple[float, float]]
    us_per_gmac: dict[str, float]
    prefill_ms: dict[str, float]

    @property
    def origin(self) -> str:
        """Where and when, for a caption."""
        return f"{self.device}, driver {self.driver}, {self.date}"


def llamacpp(path: Path = LLAMACPP_H200) -> Peer:
    """llama.cpp on one H200, a GGUF of Qwen2.5-7B's shapes and Q4_K_M types."""
    entry = json.loads(path.read_text(encoding="utf-8"))
    speeds = {
        test: (float(mean), float(spread)) for test, (mean, spread) in entry["llama_bench_tok_s"].items()
    }
    origin = {name: entry[name] for name in ("what", "device", "driver", "date")}
    wall = {name: ms for name, ms in entry["prefill_2048_kernels_ms"].items() if name != "note"}
    return Peer(name="llama.cpp", **origin, tok_s=speeds, us_per_gmac=entry["us_per_GMAC"], prefill_ms=wall)
