"""A kernel of one's own: gates that tell right from wrong, the ledger, the A/B, the solutions."""

import json
import re

import pytest
from numba import cuda
from numba.cuda import types

from minfer.campaign.probe_record import Comparison, GateResult
from minfer.cuda.gemm import GemmConfig
from minfer.engine.cuda.backend import why_unavailable
from minfer.lab.notebooks import ROOT
from minfer.lab.own_kernel import compiled_rows, draw_ledgers, judge, moved_bytes, player
from minfer.lab.own_probe import Outcome, gemm_probe, measure, transpose_probe

CELLS = json.loads((ROOT / "notebooks" / "11_your_own_kernel.ipynb").read_text())["cells"]


def source(name: str) -> str:
    return "".join(next(cell for cell in CELLS if cell["id"] == name)["source"])


def block(name: str) -> str:
    """The Python between the fences of a Markdown cell."""
    (found,) = re.findall(r"```python\n(.*?)```", source(name), re.DOTALL)
    return found


def run(text: str, file: str) -> dict:
    """What the kernels of a text define."""
    names = {"cuda": cuda, "types": types, "__name__": "own"}
    exec(compile(text, file, "exec"), names)
    return names


@pytest.fixture(scope="module")
def kernels():
    """The notebook's kernels by name."""
    names = {}
    for cell in ("naive", "with-barrier", "careless"):
        names |= run(source(cell), cell)
    return names


class TestJudge:
    def test_a_right_kernel_and_its_price(self, kernels):
        found = judge(kernels["naive"])
        assert found.right and [gate.name for gate in found.gates] == ["parity", "races"]
        assert {row["instruction"]: row["a request"] for row in found.ledger} == {
            "ld.global": 4,
            "st.global": 32,
        }
        assert moved_bytes(found) == 36
        assert "naive</b> is right" in found._repr_html_()

    @pytest.mark.parametrize(("stride", "degree"), [(32, 32), (33, 1), (36, 4)])
    def test_strides(self, kernels, stride, degree):
        found = judge(kernels["make"](stride))
        requests = {row["instruction"]: row["a request"] for row in found.ledger}
        assert found.right and requests == {
            "ld.global": 4, "st.global": 4, "st.shared": 1, "ld.shared": degree,
        }  # fmt: skip
        assert moved_bytes(found) == 8

    def test_a_missing_bound_is_found_by_the_ragged_shape(self, kernels):
        found = judge(kernels["careless"])
        assert not found.right and found.ledger == ()
        assert "OutOfBounds" in found.gates[-1].found and "is wrong" in found._repr_html_()

    def test_the_exercise_fails_until_it_is_solved(self):
        found = judge(run(source("exercise-1"), "exercise")["make"](32))
        assert not found.right and "UninitializedShared" in found.gates[-1].found
        assert judge(run(block("solution-1"), "solution")["make"](32)).right

    def test_the_swizzle_of_the_third_solution(self):
        found = judge(run(block("solution-3"), "solution")["swizzled"])
        assert found.right
        assert [row["a request"] for row in found.ledger if row["unit"] == "wavefronts"] == [1, 1]

    def test_elements_that_nobody_writes_are_seen(self):
        def lazy(x, out, rows, columns):
            if cuda.threadIdx.x == 0:
                out[0] = x[0]

        found = judge(lazy)
        assert not found.right and "error inf" in found.gates[0].found

    def test_a_race_is_a_failed_gate(self):
        def careful(x, out, rows, columns):
            # right here, and only because the simulator runs lane 0 first
            lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
            tile = cuda.shared.array(1024, types.float32)
            left, top = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
            tile[0] = types.float32(0)
            for i in range(warp, 32, 8):
                if top + i < rows and left + lane < columns:
                    out[(left + lane) * rows + top + i] = x[(top + i) * columns + left + lane]

        found = judge(careful)
        assert [gate.passed for gate in found.gates] == [True, False]
        assert "write-write race" in found.gates[1].found

    def test_places_are_those_of_the_cell(self, kernels):
        file = "/somewhere/ipykernel_123/456.py"
        text = judge(run(source("exercise-1"), file)["make"](32)).gates[0].found
        assert re.search(r"line \d+ of the cell in turned", text) and "ipykernel" not in text
        elsewhere = judge(run(source("careless"), "/some/where/mine.py")["careless"]).gates[0].found
        assert " mine.py:7" in elsewhere and "/some" not in elsewhere


class TestViews:
    def test_ledgers(self, kernels, sound):
        picture = sound(draw_ledgers([judge(kernels["naive"]), judge(kernels["make"](33))]))
        assert [row["a request"] for row in picture.rows] == [4, 32, 4, 4, 1, 1]

    def test_the_player_finds_the_conflict(self, kernels):
        shown = player([kernels["make"](32), kernels["make"](33)])
        assert shown.film.shared_bytes == 4096 and len(shown.film.conflicts) == 32
        shown.jump("conflicts")
        assert "32-way conflict: 32 wavefronts where 1 would do" in shown.panel.value
        shown.set(name="turned, 33 words a row")
        assert shown.film.conflicts == []

    def test_what_compiles_and_what_does_not(self, kernels):
        def unknown(x, out, rows, columns):
            out[0] = nowhere(x[0])  # noqa: F821

        good, bad = compiled_rows([kernels["make"](33), unknown])
        assert good["registers"] > 8 and good["spilled (B)"] == 0 and good["remark"] == ""
        assert bad["registers"] is None and "nowhere" in bad["remark"]


class TestProbes:
    def test_the_ledger_predicts(self, kernels):
        probe = transpose_probe("own.t", kernels["naive"], kernels["make"](33))
        assert str(probe.predicted()) == "36 -> 8 bytes of sectors an element: at most x4.5"
        wrong = transpose_probe("own.t", kernels["naive"], kernels["careless"])
        assert "wrong" in str(wrong.predicted())

    @pytest.mark.skipif(why_unavailable() is None, reason="there is a GPU")
    def test_without_a_gpu_gates_run_and_the_outcome_says_why_it_ends(self, kernels):
        outcome = measure(transpose_probe("own.t", kernels["naive"], kernels["make"](33)))
        assert [gate.passed for gate in outcome.gates] == [True, True] and outcome.kernels == ()
        assert outcome.verdict().startswith("All gates passed. Not timed: ")
        assert "x4.5" in outcome._repr_html_()

    def test_a_gpu_without_room_is_a_sentence(self, kernels, monkeypatch):
        def full(*_, **__):
            raise MemoryError("NVIDIA H200 has 1 of 2 bytes free, 67,108,864 were asked for: free arrays")

        monkeypatch.setattr("minfer.cuda.runtime.device", lambda: "an H200")
        monkeypatch.setattr("minfer.engine.cuda.devices.GpuDevice", object)
        monkeypatch.setattr("minfer.campaign.run.run_probe", full)
        outcome = measure(transpose_probe("own.t", kernels["naive"], kernels["make"](33)))
        assert outcome.verdict().startswith("Gate run failed: NVIDIA H200 has 1 of 2 bytes free")

    def test_the_gemm_question_of_the_notebook(self):
        probe = gemm_probe("own.q", GemmConfig(tile_m=128), GemmConfig(tile_n=128, tile_m=128), "why")
        assert str(probe.predicted()).startswith("23.44 -> 15.62 staged bytes a kFLOP")

    @pytest.mark.parametrize(
        ("variant", "words"), [(0.5, "Faster: x2.00 on H200"), (2.0, "Slower: x0.50"), (1.0, "No difference")]
    )
    def test_verdicts(self, variant, words):
        times = [1.0, 1.01, 0.99, 1.0, 1.005] * 4
        comparison = Comparison.of("4096 x 4096", 1, times, [variant * t for t in times], times[::-1])
        outcome = Outcome("own.t", "foretold", (GateResult("parity", True, "x"),), (comparison,), "H200")
        assert outcome.verdict().startswith(words)
        assert outcome.rows()[0]["before (ms)"] == pytest.approx(1.0)
        failed = Outcome("own.t", "foretold", (GateResult("parity", False, "1 off"),), (), "H200")
        assert failed.verdict() == "Gate parity failed: 1 off"
