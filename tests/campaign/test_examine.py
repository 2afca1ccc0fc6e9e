"""What is known of a probe before it is timed: gates, resources, requests line by line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import pytest

from minfer.campaign.blame import told
from minfer.campaign.discovery import choose, from_path
from minfer.campaign.examine import asked, examine, numbered, simulate_small
from minfer.campaign.gates import Parity, SameOutputs
from minfer.campaign.probe import Prediction, Probe, ProbeError
from minfer.campaign.probe_record import GateResult
from minfer.campaign.workload import Work
from minfer.campaign.workloads import GemmHopper
from minfer.cuda.gemm_hopper import GemmHopperConfig
from tests.campaign.test_probes import EXAMPLE, PROBES


def written(tmp_path, old: str = "", new: str = ""):
    """README's probe, with something changed."""
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE.replace(old, new) if old else EXAMPLE)
    (probe,) = from_path(path)
    return probe


def line_of(text: str) -> int:
    (number,) = [i for i, line in enumerate(EXAMPLE.splitlines(), 1) if text in line]
    return number


class TestExamine:
    def test_the_readmes_variant_touches_four_times_the_sectors(self, tmp_path):
        found = examine(written(tmp_path))
        assert found.right and [gate.name for gate in found.gates] == ["parity", "races"]
        assert found.case == "300" and found.device == "NVIDIA H200 SXM 141GB"
        place = f"mine.py:{line_of('out[i] = x[i] * 2')}"
        rows = found.memory_rows()
        assert {(row["line"], row["source"]) for row in rows} == {(place, "out[i] = x[i] * 2")}
        # 300 elements: 10 requests of a warp at most 4 sectors; four elements a thread: 128 B apart by 16
        taken = {(row["side"], row["instruction"]): row["requests"] * row["a request"] for row in rows}
        assert taken == {
            ("baseline", "ld.global"): 38, ("baseline", "st.global"): 38,
            ("variant", "ld.global"): 152, ("variant", "st.global"): 152,
        }  # fmt: skip
        assert len(found.memory_rows(1)) == 2
        (baseline, variant) = found.resource_rows()
        assert baseline["warps an SM"] == 64 and baseline["limited by"] == "resident warps"
        assert variant["registers"] > 8 and variant["spilled (B)"] == 0 and variant["notes"] == ""
        assert found.instruction_rows()[-1]["class"] == "total" and found.least == ()  # it tells no work

    def test_the_starter(self):
        """A warp a row: what it is for."""
        from minfer.campaign.starter import PROBE

        found = examine(PROBE)
        assert found.right
        rows = {(row["side"], row["instruction"]): row for row in found.memory_rows()}
        before, after = (rows[label, "ld.global"] for label in PROBE.called)
        assert before["a request"] == 20 and after["a request"] == after["at best"] == 4
        (least,) = found.least  # 2048 x 3585 words at 4.8 TB/s
        assert least["memory (us)"] == least["at least (us)"] == pytest.approx(6.1184)
        store = rows["a warp a row", "st.global"]  # one lane: a sector is the least
        assert store["a request"] == store["at best"] == 1

    def test_what_begins_is_told(self, tmp_path):
        steps = []
        examine(written(tmp_path), on_step=steps.append)
        assert steps == [
            "small cases in the simulator", "tracing", "looking for races", "the probe's own gates",
            "compiling: baseline", "compiling: variant",
        ]  # fmt: skip

    def test_a_device_of_the_architecture(self, tmp_path):
        found = examine(written(tmp_path), "sm_121a")
        assert found.device == "NVIDIA GB10" and found.resource_rows()[0]["warps an SM"] == 48

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("out[i] =", "out[i + 1] =", "parity: OutOfBounds: element 300 of out"),
            ("x[i] * 2", "x[i] * 3", "parity: baseline, 300, out: error 0.5"),
            ("out[i] =", "out[i // 2 * 2] =", "parity: baseline, 300, out: error inf"),
            ("baseline=Config(1)", "baseline=None or 3", "parity: AttributeError: 'int' object"),
            ('return {"out": 2', 'return {"y": 2', "parity: baseline, 300: reference has no 'out', which is"),
        ],
    )
    def test_what_is_wrong_is_a_failed_gate(self, tmp_path, old, new, words):
        found = examine(written(tmp_path, old, new))
        assert not found.right and f"{found.gates[-1].name}: {found.gates[-1].found}".startswith(words)
        assert found.memory_rows() == []

    def test_what_does_not_compile_says_why_on_one_line(self, tmp_path):
        found = examine(written(tmp_path, "x[i] * 2", "nowhere[i]"))
        row = found.resource_rows()[0]
        assert row["registers"] is None and row["limited by"] == "does not compile"
        assert "nowhere" in row["notes"] and "\n" not in row["notes"] and found.instruction_rows() == []
        assert "NameError: name 'nowhere' is not defined (mine.py:18 in double)" in found.gates[0].found

    def test_what_numba_refuses_is_told_once_with_the_readers_line(self, tmp_path):
        found = examine(written(tmp_path, "x[i] * 2", "sorted([x[i], x[0]])[0]"))
        (note,) = found.notes()
        start = "baseline, double; variant, double: mine.py:18 in double: numba or NVVM: No implementation of"
        assert note.startswith(start)

    def test_what_cannot_be_examined(self, tmp_path):
        with pytest.raises(ProbeError, match="r23-decomposition takes a wall apart"):
            examine(PROBES["r23-decomposition"])
        with pytest.raises(ProbeError, match="no architecture 'sm_7'"):
            examine(written(tmp_path), "sm_7")
        work = (
            "    def reference(",
            "    def work(self, case):\n        return Work(1.0, 1.0, 'f4')\n    def reference(",
        )
        probe = written(tmp_path, *work)
        sys.modules[type(probe.workload).__module__].Work = Work
        found = examine(probe)  # all but the least times
        assert not found.right and found.least == () and found.memory_rows() and found.resource_rows()
        assert found.gates[-1].name == "work" and "no tensor rate for 'f4'" in found.gates[-1].found

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("return {}['bytes']", "KeyError: 'bytes' (mine.py:"),
            ("return Work(float('nan'), -4.0)", "ValueError: a work's flop = nan: must be finite"),
            ("return 5", "TypeError: Double.work gave 5: give a Work, or None"),
            ("return Work(1.0, -4.0)", "ValueError: a work's nbytes = -4.0: must be finite, and not below 0"),
        ],
    )
    def test_work_that_fails_is_told_beside_the_rest(self, tmp_path, body, words):
        method = f"    def work(self, case):\n        {body}\n    def reference("
        probe = written(tmp_path, "    def reference(", method)
        sys.modules[type(probe.workload).__module__].Work = Work
        found = examine(probe)
        assert [gate.passed for gate in found.gates] == [True, True, False] and not found.right
        assert found.gates[-1].name == "work" and found.gates[-1].found.startswith(words)
        assert found.least == () and found.memory_rows() and found.instruction_rows()

    def test_a_measured_case_that_refuses_its_config(self, tmp_path):
        probe = written(
            tmp_path,
            "    def launches(self, config, case, arrays, device):\n",
            "    def launches(self, config, case, arrays, device):\n"
            "        if case not in self.small and config.each == 4:\n"
            "            raise ValueError('too large')\n",
        )
        found = examine(probe)
        assert [(gate.name, gate.passed) for gate in found.gates] == [
            ("parity", True), ("races", True), ("kernels", False),
        ]  # fmt: skip
        assert found.gates[-1].found.startswith("variant: ValueError: too large (mine.py:")
        assert not found.right and [row["side"] for row in found.resource_rows()] == ["baseline"]
        assert not replace(found, gates=found.gates[:2]).right  # a side without kernels

    def test_kernels_that_the_architecture_cannot_run(self):
        (probe,) = choose(["w4a16-slots"])
        found = examine(replace(probe, gates=(Parity(),)), "sm_80")
        assert not found.right and [gate.name for gate in found.gates if not gate.passed] == ["kernels"] * 2
        assert found.gates[-1].found.startswith("4 stages, 4 slots: no kernel for sm_80: w4a16")
        assert found.gates[-1].found.endswith("choose another --arch")

    def test_a_workload_that_launches_nothing(self, tmp_path):
        found = examine(written(tmp_path, "return [Launch.of(", "return [] and [Launch.of("))
        assert not found.right and [f"{gate.name}: {gate.found}" for gate in found.gates] == [
            "parity: baseline, 300: nothing was launched",
            "kernels: baseline: no measured case launches anything",
            "kernels: variant: no measured case launches anything",
        ]

    def test_gates_of_its_own(self, tmp_path):
        @dataclass(frozen=True)
        class Own:
            result: GateResult | None
            name: str = "own"

            def check(self, trial):
                assert not trial.on_gpu
                return self.result

        @dataclass(frozen=True)
        class Fails:
            name: str = "fails"

            def check(self, trial):
                raise KeyError("b")

        probe = written(tmp_path)
        kept = GateResult("own", True, "good")
        gates = (*probe.gates, Own(kept), Own(None, "large"), SameOutputs(0.0, "bits"), Fails())
        found = examine(replace(probe, gates=gates))
        assert [(gate.name, gate.passed) for gate in found.gates] == [
            ("parity", True), ("races", True), ("own", True), ("bits", True), ("fails", False),
        ]  # fmt: skip
        left = {gate.name: gate.why for gate in found.not_run}
        assert list(left) == ["outputs", "tokens", "large"] and not found.right
        assert left["outputs"] == "all outputs of the measured cases are compared on a GPU"
        assert left["tokens"] == "no route of the engine on sm_90a is made with baseline or variant"
        assert left["large"] == "it found nothing to check here"
        assert found.gates[-1].found.startswith("KeyError: 'b' (test_examine.py:")

    def test_equal_labels_are_numbered(self, tmp_path):
        found = examine(replace(written(tmp_path), labels=("mine", "mine")))
        assert list(found.instruction_rows()[0]) == ["class", "mine", "mine (2)"]
        assert {row["side"] for row in found.memory_rows()} == {"mine", "mine (2)"}
        assert numbered(["a", "a", "a (2)", "b"]) == ["a", "a (2)", "a (2) (2)", "b"]


class TestSimulateSmall:
    def test_equal_sides_run_once(self, tmp_path):
        probe = written(tmp_path)
        gates, (before, after) = simulate_small(replace(probe, variant=probe.baseline))
        assert gates[0].found.startswith("1 small case: ") and before is after and len(before) == 1

    def test_a_race_between_warps(self, tmp_path):
        """Right in the simulator, which runs warps one after the other."""
        source = EXAMPLE.replace(
            "    def double(", "    from numba.cuda import types\n\n    def double("
        ).replace(
            "            out[i] = x[i] * 2",
            "            tile = cuda.shared.array(1, types.float32)\n"
            "            tile[0] = x[i]\n            out[i] = x[i] * 2",
        )
        (tmp_path / "mine.py").write_text(source)
        (probe,) = from_path(tmp_path)
        gates, traces = simulate_small(probe)
        assert [gate.passed for gate in gates] == [True, False] and traces[0]
        assert gates[1].found.startswith("write-write race") and "mine.py" in gates[1].found

    def test_conflicts_of_a_shipped_kernel_are_charged_to_its_own_lines(self):
        probe = PROBES["p5.2-tm128"]
        plain = replace(probe.baseline, layout="plain")
        _, (traces, _) = simulate_small(replace(probe, baseline=plain, variant=plain))
        worst = asked(traces)[0]
        assert worst.instruction == "ldmatrix" and worst.source.startswith("load_")
        assert worst.place.file_name == "gemm.py" and worst.place.function == "multiply_k16"
        assert worst.taken == 4 * worst.least

    def test_tiles_of_the_hopper_gemm(self):
        def asks(**fields):
            return Probe(
                name="tiles", title="Narrow tiles", hypothesis="More of them fill the waves.",
                prediction=Prediction(None, "x"), workload=GemmHopper(),
                baseline=GemmHopperConfig(), variant=GemmHopperConfig(128, 6, **fields),
            )  # fmt: skip

        gates, traces = simulate_small(asks())
        assert [gate.passed for gate in gates] == [True, True] and all(traces)
        assert {line.instruction for line in asked(traces[1])} == {"stmatrix"}  # TMA does the rest
        gates, _ = simulate_small(asks(pdl=True))
        assert not gates[0].passed and 'use epilogue="store" and pdl=False' in gates[0].found
        gates, _ = simulate_small(asks(split_k=True))
        assert not gates[0].passed and "no workspace for the sums" in gates[0].found
        assert "use split_k=False" in gates[0].found


class TestBlame:
    def test_the_innermost_line_of_ones_own(self, tmp_path):
        path = tmp_path / "mine.py"
        path.write_text("import json\n\ndef f():\n    json.loads('{')\n")
        names: dict = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        with pytest.raises(ValueError, match="Expecting") as caught:
            names["f"]()
        assert told(caught.value).endswith("(mine.py:4 in f)")

    def test_a_line_that_the_message_names_is_not_told_twice(self):
        try:
            raise ValueError(f"{__file__}:{0} is wrong")
        except ValueError as error:
            number = error.__traceback__.tb_lineno
        try:
            exec(compile(f"raise ValueError('at {__file__}:1 it is')", __file__, "exec"))
        except ValueError as error:
            assert told(error) == f"ValueError: at {__file__}:1 it is"
        assert number > 1
