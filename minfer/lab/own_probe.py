"""A probe of one's own: two kernels or two configs, what the ledger predicts, gates, and the A/B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from minfer.arithmetic.ledger import GemmTile
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.probe_record import Comparison, GateResult
from minfer.cuda.kernel import NoDevice
from minfer.lab import style
from minfer.lab.errors import EXPECTED, notice, sentence
from minfer.lab.own_kernel import Own, Transpose, judge, moved_bytes
from minfer.lab.table import Table

if TYPE_CHECKING:
    from minfer.cuda.gemm import GemmConfig


def transpose_probe(name: str, baseline: Callable[..., None], variant: Callable[..., None]) -> Probe:
    """The probe: does `variant` transpose faster than `baseline`? The sectors of both predict it."""

    def predict() -> Prediction:
        before, after = (moved_bytes(judge(function)) for function in (baseline, variant))
        if not before or not after:
            return Prediction(None, "a kernel that is wrong moves nothing that counts")
        text = f"{before:.0f} -> {after:.0f} bytes of sectors an element: at most x{before / after:.1f}"
        return Prediction(None, text)

    return Probe(
        name=name,
        title="Transpose of a matrix",
        hypothesis="Fewer sectors for the same bytes take less time.",
        prediction=predict,
        workload=Transpose(),
        baseline=Own(baseline),
        variant=Own(variant),
        labels=(baseline.__name__, variant.__name__),
    )


@dataclass(frozen=True)
class Outcome:
    """An A/B, or why there is none.

    Attributes:
        probe, prediction: what was asked and foretold. gates: of both sides.
        kernels: the comparisons; empty without a GPU or behind a failed gate. where: the device, or why there
            is none.
    """

    probe: str
    prediction: str
    gates: tuple[GateResult, ...]
    kernels: tuple[Comparison, ...]
    where: str

    def rows(self) -> list[dict]:
        """Rows of case, ms before and after, speed with its interval, noise."""
        return [
            {
                "case": c.case,
                "before (ms)": c.ms[0],
                "after (ms)": c.ms[1],
                "speed": f"x{c.ratio:.2f}",
                "interval": f"x{c.low:.2f} to x{c.high:.2f}",
                "noise": f"{c.noise:.1%}",
            }
            for c in self.kernels
        ]

    def verdict(self) -> str:
        """In a sentence: whether it pays."""
        failed = [gate for gate in self.gates if not gate.passed]
        if failed:
            return f"Gate {failed[0].name} failed: {failed[0].found}"
        if not self.kernels:
            return f"All gates passed. Not timed: {self.where}"
        (c,) = self.kernels[:1]
        if c.low <= 1 + c.noise and c.high >= 1 - c.noise:
            return f"No difference beyond the noise of {c.noise:.1%} on {self.where}"
        return f"{'Faster' if c.low > 1 else 'Slower'}: x{c.ratio:.2f} on {self.where}"

    def __repr__(self) -> str:
        return f"{self.probe}: {self.prediction}\n{self.verdict()}"

    def _repr_html_(self) -> str:
        table = Table(self.rows(), formats={"before (ms)": ".4f", "after (ms)": ".4f"})
        body = table._repr_html_() if self.kernels else ""
        return (
            f"<p>Predicted: {escape(self.prediction)}</p>{notice(escape(self.verdict()), style.BLUE)}{body}"
        )


def measure(probe: Probe, rounds: int = 20) -> Outcome:
    """Gates, then the interleaved A/B on this machine's GPU; without one the gates run in the simulator.

    What a GPU refuses (no memory, a launch) is told in the outcome.
    """
    from minfer.campaign.run import run_gates, run_probe
    from minfer.campaign.trial import Trial
    from minfer.cuda.runtime import device
    from minfer.engine.cuda.devices import GpuDevice, SimulatedDevice

    prediction = str(probe.predicted())
    try:
        where = str(device())
    except NoDevice as error:
        gates = run_gates(Trial(probe, SimulatedDevice()), lambda line: None)
        return Outcome(probe.name, prediction, tuple(gates), (), sentence(error))
    try:
        run = run_probe(probe, GpuDevice(), rounds=rounds, say=lambda line: None)
    except EXPECTED as error:
        refused = GateResult("run", False, sentence(error))
        return Outcome(probe.name, prediction, (refused,), (), where)
    return Outcome(probe.name, prediction, tuple(run.gates), tuple(run.kernels), where)


def gemm_probe(name: str, baseline: GemmConfig, variant: GemmConfig, hypothesis: str) -> Probe:
    """A probe of two configs of the GEMM kernel on the 7B's products; the ledger predicts it."""
    from minfer.campaign.workloads import Gemm

    def predict() -> Prediction:
        a, b = (GemmTile(c.tile_n, c.tile_m, c.tile_k, c.stages) for c in (baseline, variant))
        text = (
            f"{a.bytes_per_kflop:.2f} -> {b.bytes_per_kflop:.2f} staged bytes a kFLOP, "
            f"{a.barriers_per_mflop:.2f} -> {b.barriers_per_mflop:.2f} barriers a MFLOP, "
            f"{baseline.shared_bytes:,} -> {variant.shared_bytes:,} B of shared memory a block"
        )
        return Prediction(None, text)

    return Probe(
        name=name,
        title=f"{baseline} against {variant}",
        hypothesis=hypothesis,
        prediction=predict,
        workload=Gemm(),
        baseline=baseline,
        variant=variant,
        labels=(str(baseline), str(variant)),
    )
