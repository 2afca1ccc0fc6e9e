"""The four products of a layer, by Hopper's GEMM (TMA and wgmma) over f16 weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from minfer.campaign.workload import Case, Launch, kernel
from minfer.campaign.workloads.gemm import Gemm
from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
from minfer.cuda.kernel import ConfigRefused


@dataclass(frozen=True)
class GemmHopper(Gemm):
    """C = A B^T for each product, by configs that only store C. Runs on sm_90a, and in the simulator."""

    small: ClassVar = (
        Case.of("130 x 72 x 128", nt=130, od=72, id=128),
        Case.of("40 x 24 x 64", nt=40, od=24, id=64),
    )

    def launches(
        self, config: GemmHopperConfig, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        if config.epilogue != "store" or config.pdl:
            raise ConfigRefused(
                f"gemm_hopper [{config}]: this workload has no inputs for an epilogue or for dependent "
                'launches: use epilogue="store" and pdl=False'
            )
        if config.split_k:
            raise ConfigRefused(
                f"gemm_hopper [{config}]: this workload has no workspace for the sums that two blocks "
                "exchange: use split_k=False"
            )
        nt, od, depth = case["nt"], case["od"], case["id"]
        boxes = config.boxes
        maps = [
            device.tensor_map(arrays[name], boxes[of]) for name, of in (("a", "a"), ("b", "b"), ("out", "c"))
        ]
        made, grid = kernel(make_gemm_hopper, config), config.grid(nt, od, device.sms)
        return [Launch.of(made, grid, *maps, nt, od, depth, config.group(nt, od))]

    def route(self, config: GemmHopperConfig, arch: str) -> None:
        """None: a route chooses the tile of each product by itself."""

    @property
    def wall_route(self) -> str:
        return "f16-wgmma"

    def _converts(self, config: GemmHopperConfig) -> bool:
        return False
