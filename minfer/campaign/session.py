"""A session of probes: the GPU, the model, the records that come of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from minfer.campaign.blame import told
from minfer.campaign.decompose import DECODE_CONTEXT, decompose_all, prefill_routes
from minfer.campaign.gates import SameTokens
from minfer.campaign.precompile import precompile
from minfer.campaign.prefills import SharedModel
from minfer.campaign.probe import Probe, ProbeError
from minfer.campaign.probe_record import ProbeRun
from minfer.campaign.records import FOLDER, Record, load_records, read_record, write_record
from minfer.campaign.run import run_gates, run_probe, wall_run
from minfer.campaign.table import describe_run
from minfer.campaign.trial import Trial
from minfer.engine.cuda.devices import GpuDevice, SimulatedDevice
from minfer.engine.session import WARM_UP_TOKENS
from minfer.model.model import Model

GATE_TOKENS = SameTokens().tokens


def asked(probe: Probe) -> str:
    """What a run is about: it stands before the gates."""
    return f"{probe.name}: {probe.title}\nhypothesis: {probe.hypothesis}\nprediction: {probe.predicted()}"


def simulate(probes: Sequence[Probe], say: Callable[[str], None]) -> list[str]:
    """Run the gates of probes in the simulator, on their small cases; the names of those that failed.

    Nothing is timed and no record is written: the simulator's time says nothing of a GPU's.
    """
    failed = []
    for probe in probes:
        say(asked(probe))
        if probe.measure != "ab":
            say("the wall is measured on a GPU: nothing to simulate")
            continue
        try:
            gates = run_gates(Trial(probe, SimulatedDevice("sm_90a", 4)), say)
        except Exception as error:  # a probe's own code may raise anything
            say(f"{probe.name}: failed: {told(error)}")
            failed.append(probe.name)
            continue
        if not all(gate.passed for gate in gates):
            failed.append(probe.name)
    return failed


def run(
    probes: Sequence[Probe],
    *,
    model: str | None,
    rounds: int,
    prefill_rounds: int,
    tokens: int,
    folder: Path | None,
    within_s: float = math.inf,
    ahead: bool = True,
    say: Callable[[str], None],
) -> list[str]:
    """Run probes on the GPU in use, one record each; the names of those that failed. After `within_s` seconds
    no further one is begun. ahead: compile first, in parallel (`prepare`); else each kernel at its launch.

    A record is written when its probe has ended: what is interrupted, or fails, leaves none.

    Raises:
        NoDevice: no GPU. ProbeError: a probe that needs a model, and none was given.
    """
    walls = [probe.name for probe in probes if probe.measure == "wall"]
    if walls and model is None:
        raise ProbeError(f"{', '.join(walls)}: takes the wall of a model apart: give one with -m")
    for probe in probes:
        probe.predicted()  # one that fails, fails before anything is measured
    end = time.monotonic() + within_s
    device = GpuDevice()
    if ahead:
        prepare(probes, device.arch, model, tokens, say)
    shared = None if model is None else SharedModel(model, device, max(tokens, DECODE_CONTEXT + 1), say)
    known = _known()
    failed: list[str] = []

    def keep(record: ProbeRun) -> None:
        say(describe_run(record))
        say(f"record: {write_record(record, folder or FOLDER, stem=f'probe-{record.probe}')}")
        if not record.gates_passed:
            failed.append(record.probe)

    for probe in sorted(probes, key=lambda probe: probe.measure != "wall"):  # walls first: gains need them
        if time.monotonic() > end:
            say(f"{probe.name}: not begun: {within_s:g} s are over")
            continue
        say(f"\n{asked(probe)}")
        if probe.measure == "wall":
            walls, refused = decompose_all(shared, tokens, say)
            for wall in walls:
                path = write_record(wall, folder or FOLDER, stem=wall.stem)
                say(f"record: {path}")
                known.append(read_record(path))
            keep(wall_run(probe, device, shared.name, walls, refused))
            continue
        try:
            record = run_probe(
                probe,
                device,
                model=shared,
                rounds=rounds,
                prefill_rounds=prefill_rounds,
                tokens=tokens,
                records=known,
                say=say,
            )
        except Exception as error:  # a figure above a ceiling, a kernel that fails, a probe's own code
            say(f"{probe.name}: not recorded: {told(error)}")
            failed.append(probe.name)
            continue
        keep(record)
    return failed


def prepare(
    probes: Sequence[Probe], arch: str, model: str | None, tokens: int, say: Callable[[str], None]
) -> None:
    """Compile everything that a run will launch; needs no GPU."""
    loaded = None if model is None else Model.load(model)
    routes = prefill_routes(arch) if any(probe.measure == "wall" for probe in probes) else []
    context = [DECODE_CONTEXT] if routes else []
    prompts = tuple(
        dict.fromkeys((max(tokens, DECODE_CONTEXT + 1), tokens, GATE_TOKENS, WARM_UP_TOKENS, *context))
    )
    precompile(probes, arch, model=loaded, routes=routes, prompts=prompts, say=say)


def _known() -> list[Record]:
    """The records that come with the repository; none where minfer is used outside of it."""
    return load_records(kind="wall") if FOLDER.is_dir() else []
