"""GPU tests: skipped without a GPU, and robust with one.

The tests run in child processes, MINFER_GPU_LANES side by side, each on its share of the cores, since most of
their time goes into compiling; compute-sanitizer has a lane of its own, and what measures speed (ALONE) runs
after the others, alone. A kernel that faults leaves its
CUDA context useless, so the child stops there and another child goes on with the tests that are left: one
failure does not lose the rest. `MINFER_GPU_IN_PROCESS=1` runs everything in this process (for a debugger).
All shipped kernels are compiled first; `MINFER_GPU_WARM=0` leaves that out, for a run of few tests.

A run with a GPU writes a summary record (device, driver, versions, commit, passed, failed, skipped, figures
measured) to `$MINFER_GPU_RECORD`, or to data/records/<device>/gpu-tests-<date>.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minfer.cuda.kernel import NoDevice
from minfer.cuda.runtime import DriverError, device
from tests.gpu.record import write_record
from tests.gpu.warm import warm_cache

HERE = Path(__file__).parent
CHILD = "MINFER_GPU_CHILD"  # set in a child: the file that it reports to
FAULTED = 77  # a child's exit status: its CUDA context is useless
TEST_LIMIT_S = 240  # for one test: a child that has not reported for so long is ended
LANES = int(os.environ.get("MINFER_GPU_LANES", max(1, min(8, (os.cpu_count() or 1) // 2))))
SANITIZER = "test_sanitizer_gpu.py"
ALONE = ("test_overhead", "test_speed")  # beginnings of names: nothing else may run beside them
RUN_LIMIT_S = float(os.environ.get("MINFER_GPU_LIMIT_S", 900))  # for all: what is left then counts as failed


def _in_process() -> bool:
    return CHILD in os.environ or os.environ.get("MINFER_GPU_IN_PROCESS") == "1"


def pytest_collection_modifyitems(config, items):
    mine = [item for item in items if HERE in Path(item.path).parents]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if not _in_process() and config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(0))  # the first one waits for all children
    try:
        if CHILD not in os.environ:
            device()
    except NoDevice as error:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture
def hopper():
    """Skips the test where the GPU is not Hopper's."""
    if device().arch != "sm_90a":
        pytest.skip(f"needs sm_90a (wgmma, TMA); this is {device().arch}")


# ---- in a child: report every test as it ends, stop when the context is useless


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if CHILD in os.environ:
        _tell({"report": report._to_json()})


def pytest_runtest_logstart(nodeid, location):
    if CHILD in os.environ:
        _tell({"started": nodeid})


def _tell(message: dict) -> None:
    with open(os.environ[CHILD], "a") as file:
        file.write(json.dumps(message) + "\n")


def pytest_runtest_teardown(item, nextitem):
    if CHILD in os.environ and getattr(item, "_failed", False) and _faulted():
        item.session.shouldstop = "the CUDA context is useless"
        item.config._gpu_faulted = True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if outcome.get_result().failed:
        item._failed = True


def pytest_sessionfinish(session, exitstatus):
    if getattr(session.config, "_gpu_faulted", False):
        session.exitstatus = FAULTED


def _faulted() -> bool:
    try:
        device().synchronize()
    except DriverError:
        return True
    return False


# ---- in the parent: run the children, replay their reports


def pytest_runtest_protocol(item, nextitem):
    # pytest asks this of every test, not only of those in this folder.
    if _in_process() or HERE not in Path(item.path).parents or item.get_closest_marker("skip"):
        return None
    session = item.session
    if not hasattr(session, "_gpu_reports"):
        mine = [i for i in session.items if HERE in Path(i.path).parents]
        end = time.monotonic() + RUN_LIMIT_S  # compiling counts
        if len(mine) > 20 and os.environ.get("MINFER_GPU_WARM") != "0":
            warm_cache(device().arch)
        session._gpu_reports, measured = _run_lanes(session.config, mine, end)
        session._gpu_record = write_record(session._gpu_reports, measured, session.config.rootpath)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in session._gpu_reports.get(item.nodeid, []):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _run_lanes(config, items, end):
    """({test: its reports}, {figure: value}) of the tests: LANES shares and the sanitizer side by side, then
    those to run alone, until `end` on the monotonic clock."""
    names = {item.nodeid: Path(item.path).name for item in items}
    alone = [nodeid for nodeid, name in names.items() if name.startswith(ALONE)]
    sanitizer = [nodeid for nodeid, name in names.items() if name == SANITIZER]
    others = [nodeid for nodeid, name in names.items() if not name.startswith((*ALONE, SANITIZER))]
    shares = [*(others[i::LANES] for i in range(LANES)), sanitizer]
    with ThreadPoolExecutor(len(shares)) as pool:
        lanes = [
            pool.submit(_run_children, config, share, end, _lane_cores(lane))
            for lane, share in enumerate(shares)
        ]
        results = [lane.result() for lane in lanes]
    results.append(_run_children(config, alone, end, None))
    reports, measured = {}, {}
    for some_reports, some_measured in results:
        reports |= some_reports
        measured |= some_measured
    return reports, measured


def _lane_cores(lane: int) -> set[int] | None:
    """Twice its share of the cores, which it divides with its neighbours: else every lane's BLAS and thread
    team would take all of them. None where the system has no affinities."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // LANES)
    return {cores[(lane * share + i) % len(cores)] for i in range(2 * share)}


def _run_children(config, nodeids, end, cores):
    """({test: its reports}, {figure: value}) of the tests, in as many child processes as it takes, on these
    cores (None: all), until `end` on the monotonic clock."""
    reports, measured, left = {}, {}, list(nodeids)
    while left and time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            path, output = Path(folder) / "reports.jsonl", Path(folder) / "output"
            path.touch()
            status = _run_child(config, left, path, output, end, cores)
            started = None
            for line in path.read_text().splitlines():
                message = json.loads(line)
                started = message.get("started", started)
                if "report" in message:
                    report = pytest.TestReport._from_json(message["report"])
                    if isinstance(report.longrepr, list):  # a skip's place and reason: JSON has no tuples
                        report.longrepr = tuple(report.longrepr)
                    reports.setdefault(report.nodeid, []).append(report)
                measured.update(message.get("measured", {}))
            text = output.read_text(errors="replace")[-4000:]
        ended = {nodeid for nodeid, found in reports.items() if any(r.when == "teardown" for r in found)}
        if status not in (0, 1, FAULTED) or not ended.intersection(left):
            victim = (
                started
                if started in left and started not in ended
                else next(n for n in left if n not in ended)
            )
            died = f"the test process ended with status {status} in this test (or hung)\n{text}"
            reports[victim] = [_not_run(victim, died)]
            ended.add(victim)
        left = [nodeid for nodeid in left if nodeid not in ended]
    for nodeid in left:
        reports[nodeid] = [_not_run(nodeid, f"not run: the {RUN_LIMIT_S:.0f} s for all GPU tests were over")]
    return reports, measured


def _run_child(config, nodeids, path, output, end, cores) -> int:
    environment = os.environ | {CHILD: str(path)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *nodeids]
    with open(output, "w") as file:
        child = subprocess.Popen(command, cwd=config.rootpath, env=environment, stdout=file, stderr=file)
        if cores is not None:
            os.sched_setaffinity(child.pid, cores)
        size, changed = 0, time.monotonic()
        while (status := child.poll()) is None:
            now = time.monotonic()
            if path.stat().st_size != size:
                size, changed = path.stat().st_size, now
            if now > end or now - changed > TEST_LIMIT_S:
                child.kill()
                return child.wait()
            time.sleep(0.2)
        return status


def _not_run(nodeid: str, text: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid, (nodeid.split("::")[0], 0, nodeid), {}, "failed", text, "call")


def pytest_terminal_summary(terminalreporter):
    record = getattr(terminalreporter._session, "_gpu_record", None)
    if record is None:
        return
    path, content = record
    terminalreporter.section("GPU")
    for name, value in sorted(content["measured"].items()):
        terminalreporter.write_line(f"{name:48} {json.dumps(value)}")
    counts = ", ".join(f"{content[name]} {name}" for name in ("passed", "failed", "skipped"))
    terminalreporter.write_line(f"{content['device']}, driver {content['driver']}: {counts}; record: {path}")


@pytest.fixture
def measure():
    """measure(name, value): keep a figure for the record and the table at the end."""

    def keep(name: str, value) -> None:
        if CHILD in os.environ:
            _tell({"measured": {name: value}})
        else:
            print(name, value)

    return keep


@pytest.fixture(scope="session")
def matrices():
    """(torch, A [2048, 3584], B [4608, 3584] f16, A B^T in f64, the sums of magnitudes)."""
    torch = pytest.importorskip("torch")
    from tests.gpu.gemm_cases import LARGEST

    generator = torch.Generator("cuda").manual_seed(0)
    nt, od, depth = LARGEST
    a = torch.randn(nt, depth, device="cuda", generator=generator).half()
    b = torch.randn(od, depth, device="cuda", generator=generator).half()
    exact = a.double() @ b.double().T
    magnitude = a.double().abs() @ b.double().abs().T
    return torch, a, b, exact, magnitude


@pytest.fixture(scope="module", params=("qwen2-k", "llama-legacy", "qwen3-k"))
def oracle(request, data_dir):
    """(a small model, token ids, llama.cpp's logits of them with an f32 cache)."""
    import numpy as np

    from minfer.model.model import Model

    values = np.load(data_dir / f"{request.param}-logits.npz")
    return Model.load(data_dir / f"{request.param}.gguf"), values["ids"], values["logits_f32"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The synthetic qwen2-tiny."""
    from minfer.model.model import Model
    from minfer.model.synth import synth

    return Model.load(synth("qwen2-tiny", tmp_path_factory.mktemp("models") / "tiny.gguf", progress=False))
