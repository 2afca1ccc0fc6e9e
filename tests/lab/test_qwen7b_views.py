"""The 7B's views: memory plans, work, measured speeds, and where they come from."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from minfer.arithmetic.devices import H200, RTX_4090, device
from minfer.arithmetic.work import QWEN25_7B, decode_bytes, prefill_gmac
from minfer.campaign import route_benches
from minfer.campaign.peers import llamacpp
from minfer.campaign.records import RecordError, load_records
from minfer.campaign.report import newest_sweep, routes
from minfer.cuda import w4a16
from minfer.cuda.gemm_hopper import split_workspace
from minfer.cuda.kernel import CompileError, LaunchRefused
from minfer.engine import bench as engine_bench
from minfer.engine.cuda.plan import RESERVE_BYTES
from minfer.engine.cuda.routes import ROUTES
from minfer.engine.errors import EngineError
from minfer.lab import measured, memory_view, speed_view
from minfer.lab.generate import TINY
from minfer.lab.token_view import READ
from tests.campaign.fake_gpu import Clock, FakeGpu, install

RECORDS = load_records(device="h200")
BENCHES = routes(RECORDS)
SWEEP = newest_sweep(RECORDS)
GB = 1e9


class TestMemory:
    def test_the_shapes_are_those_of_the_file_that_was_measured(self):
        model = memory_view.shapes()
        matrices = [m for layer in model.layers for stack in layer for m in stack] + model.tables
        assert sum(m.rows * m.columns for m in matrices) == pytest.approx(
            BENCHES["f16"].results[0].model_n_params, rel=1e-3
        )
        assert sum(m.block_bytes for m in matrices) == pytest.approx(
            BENCHES["f16"].results[0].model_size, rel=1e-3
        )
        by_layer = [stack[-1].format for layer in model.layers for stack in layer if len(stack) == 3]
        assert by_layer == speed_view.TYPES["v"]

    def test_both_choices_and_the_chosen_one(self):
        roomy = memory_view.memory_report("h200", 4096, 2048, 0)
        assert roomy.chosen is True and roomy.refusal is None
        tight = memory_view.memory_report("rtx4090", 4096, 2048, 10)
        assert tight.chosen is False and tight.choices.keys() == {True, False}
        assert "weights as f16" in tight.choices[True] and "f16 scratch of one matrix" in tight.choices[False]
        assert {row["weights"] for row in tight.rows() if row["chosen"]} == {memory_view.NAMES[False]}
        full = memory_view.memory_report("rtx4090", 4096, 2048, 19)
        assert full.chosen is None and "does not fit: weights as blocks 4.68 GB" in full.refusal

    def test_others_cannot_hold_more_than_there_is(self):
        with pytest.raises(ValueError, match="RTX 4090 has 24 GB: others cannot hold 24 GB"):
            memory_view.memory_report("rtx4090", 4096, 2048, 24)

    def test_needs_grow_with_the_context_by_its_cache(self):
        short, long = memory_view.need_rows([4096, 32768])
        assert long["KV cache"] - short["KV cache"] == 28 * 2 * 512 * 2 * 28672 / GB
        per_layer = QWEN25_7B.weights()
        assert short["with f16 copies"] - short["without f16 copies"] == pytest.approx(
            (2 * 28 * per_layer - 2 * 37888 * 3584) / GB
        )
        # Of products of few tokens; w4a16's tiles are larger.
        parts_of_tiles = 4 * (sum(split_workspace(H200.sms)) - sum(w4a16.split_workspace(H200.sms)))
        assert short["without f16 copies"] - short["w4a16"] == pytest.approx(
            (2 * 37888 * 3584 + parts_of_tiles) / GB
        )

    def test_the_longest_context_is_the_last_that_fits(self):
        model, free = memory_view.shapes(), int(RTX_4090.memory)
        for copies in (True, False):
            longest = memory_view.longest_context(model, RTX_4090, free, copies)
            assert memory_view.plan(model, RTX_4090, longest, 2048, free).resident is copies
            if copies:
                assert not memory_view.plan(model, RTX_4090, longest + 1, 2048, free).resident
            else:
                with pytest.raises(EngineError, match="does not fit"):
                    memory_view.plan(model, RTX_4090, longest + 1, 2048, free)
        assert memory_view.longest_context(model, RTX_4090, RESERVE_BYTES, False) == 0

    def test_every_device_has_a_row(self):
        rows = memory_view.device_rows([H200, RTX_4090])
        assert [row["f16 copies"] for row in rows] == [True, True]
        assert rows[0]["longest context with copies"] > 10 * rows[1]["longest context with copies"]

    @pytest.mark.parametrize(
        ("where", "held"), [("h200", 0), ("rtx4090", 10), ("rtx4090", 19), ("gb10", 100)]
    )
    def test_picture(self, where, held, sound):
        picture = sound(memory_view.draw_memory(memory_view.memory_report(where, 4096, 2048, held)))
        parts = 5 if device(where).arch == "sm_90a" else 4
        assert len(picture.rows) == 2 * parts

    def test_the_explorer_says_what_does_not_fit(self):
        explorer = memory_view.memory_explorer()
        assert "13.05" in explorer.panel.value
        explorer.set(held_gb=10)
        assert "weights as f16" not in explorer.panel.value
        explorer.set(held_gb=19)
        assert "does not fit" in explorer.panel.value
        explorer.set(held_gb=30)
        assert "others cannot hold 30 GB" in explorer.panel.value


class TestWork:
    def test_rows_are_the_ledger(self):
        rows = speed_view.work_rows(2048)
        assert {row["class"]: row["GMAC"] for row in rows} == prefill_gmac(QWEN25_7B, 2048)
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert all(row["every position"] >= row["GMAC"] for row in rows)

    def test_picture(self, sound):
        assert sound(speed_view.draw_work()).rows == speed_view.work_rows()


class TestVariants:
    rows = speed_view.variant_rows(BENCHES, SWEEP, llamacpp())

    def test_every_measurement_is_there_slowest_first(self):
        assert len(self.rows) == len({*BENCHES, *SWEEP.variants}) + 1
        rates = [row["tok/s"] for row in self.rows]
        assert rates == sorted(rates)
        by_name = {row["variant"]: row for row in self.rows}
        assert by_name["llama.cpp"]["of the peer"] == by_name["f16"]["of f16"] == 1
        assert by_name["f16-wgmma"]["tok/s"] == BENCHES["f16-wgmma"].result("pp2048").avg_ts
        assert by_name["f16-wgmma"]["of f16"] is None
        for name, result in SWEEP.variants.items():
            assert by_name[name]["tok/s"] == result.avg_ts and by_name[name]["±"] == result.stddev_ts
            assert by_name[name]["of f16"] == result.avg_ts / SWEEP.variant("f16").avg_ts

    def test_a_variant_is_filed_under_what_it_changes(self):
        by_name = {row["variant"]: row["changes"] for row in self.rows}
        assert by_name["tm128-ks64"] == by_name["128x256"] == "GEMM"
        assert by_name["fa-p5.0"] == "attention" and by_name["convert-scalar"] == "convert"
        assert by_name["weights-blocks"] == "weights"
        assert by_name["f16"] == by_name["f16-wgmma"] == "whole route"

    def test_steps_stand_beside_the_seeds(self):
        rows = {row["step"]: row for row in speed_view.step_rows(SWEEP)}
        assert [row["GB10 (%)"] for row in rows.values()] == [30, -38, -3, -8]
        depth = rows["KS 32 to 64 at TM 128"]
        assert depth["speed (%)"] == pytest.approx((depth["before (ms)"] / depth["after (ms)"] - 1) * 100)
        assert depth["verdict there"] == "REVERTED" and depth["speed (%)"] > 0
        without = replace(SWEEP, results=SWEEP.results[:1])
        with pytest.raises(RecordError, match=r"sweep-.*: results: no variant tm64, only f16"):
            speed_view.step_rows(without)

    def test_no_rate_is_above_the_tensor_peak(self):
        assert all(0 < row["TFLOPS"] < H200.tensor_f16 / 1e12 for row in self.rows)

    def test_picture(self, sound):
        assert sound(speed_view.draw_variants(self.rows, "here")).rows == self.rows

    def test_without_a_peer(self, sound):
        rows = speed_view.variant_rows(BENCHES, None, None)
        assert {row["of the peer"] for row in rows} == {None}
        sound(speed_view.draw_variants(rows))


class TestDecode:
    rows = speed_view.decode_rows(BENCHES, llamacpp(), H200)

    def test_rates_are_below_the_limit(self):
        assert [row["engine"] for row in self.rows] == [*BENCHES, "llama.cpp", "llama.cpp"]
        for row in self.rows:
            assert 0 < row["of the read"] < 1
            assert row["GB/s"] == pytest.approx(row["of the read"] * READ / 1e9)  # as notebook 9 divides
        assert self.rows[0]["GB a token"] == pytest.approx(4.37, abs=0.01)

    def test_limits_fall_with_the_context(self):
        (row,) = speed_view.limit_rows([H200], [0, 32768])
        assert row["at 0 tokens"] == H200.bandwidth / decode_bytes(QWEN25_7B, speed_view.TYPES)
        assert row["at 32,768 tokens"] < row["at 0 tokens"]

    def test_what_nobody_measured_is_the_datasheets(self):
        assert speed_view.read_rate(H200) == READ < H200.bandwidth
        assert speed_view.read_rate(RTX_4090) == RTX_4090.bandwidth

    def test_small_products_read_slower(self):
        rows = speed_view.gemv_rows(RECORDS)
        assert {row["format"] for row in rows} == {"Q4_K", "Q6_K"}
        assert [row["us"] for row in rows] == sorted(row["us"] for row in rows)
        assert max(row["GB/s"] for row in rows) <= READ / 1e9
        assert rows[0]["GB/s"] < rows[-1]["GB/s"]

    def test_the_products_take_most_of_a_token(self):
        times = {(row["format"], row["matrix"]): row["us"] for row in speed_view.gemv_rows(RECORDS)}
        down = times["Q4_K", "3584x18944"] + times["Q6_K", "3584x18944"]
        others = sum(times["Q4_K", shape] for shape in ("4608x3584", "3584x3584", "37888x3584"))
        found = speed_view.products_ms(RECORDS)
        assert found * 1e3 == pytest.approx(28 * others + 14 * down + times["Q6_K", "152064x3584"])
        assert found < 1e3 / self.rows[0]["tok/s"]
        with pytest.raises(RecordError, match="timed the products"):
            speed_view.products_ms([])

    def test_picture(self, sound):
        picture = speed_view.draw_decode(self.rows, H200, "here")
        assert sound(picture).rows == self.rows
        sound(speed_view.draw_decode(speed_view.decode_rows(BENCHES, None, H200), H200))


def test_sustained_prefills_have_their_sensors():
    benches = routes(RECORDS, regime="sustained")
    rows = speed_view.sustained_rows(benches)
    assert [row["route"] for row in rows] == list(benches)
    for row in rows:
        assert row["sustained (tok/s)"] == benches[row["route"]].result("pp2048").avg_ts
        assert 100 < row["power (W)"] < 1000 and 500 < row["SM clock (MHz)"] < 2500


def test_the_seeds_routes_on_both_gpus():
    rows = {row["engine"]: row for row in speed_view.gb10_rows(BENCHES, llamacpp())}
    assert rows["f16"]["GB10 (tok/s)"] == 2355 and rows["mmq"]["GB10 (tok/s)"] == 441
    assert rows["f16"]["H200 (tok/s)"] == BENCHES["f16"].result("pp2048").avg_ts
    assert rows["f16"]["GB10 (tok/s)"] < rows["llama.cpp"]["GB10 (tok/s)"]
    assert rows["f16"]["H200 (tok/s)"] > rows["llama.cpp"]["H200 (tok/s)"]
    for row in rows.values():
        assert row["times"] == pytest.approx(row["H200 (tok/s)"] / row["GB10 (tok/s)"])


class TestMeasured:
    @pytest.fixture
    def here(self, monkeypatch, tmp_path):
        """A machine with a GPU of the given name and the synthetic 7B."""
        monkeypatch.setenv("MINFER_MODELS", str(tmp_path))

        def set_up(name="NVIDIA H200", arch="sm_90a", model=True, reason=None):
            gpu = SimpleNamespace(name=name, arch=arch, cuda_version="13.0")
            monkeypatch.setattr("minfer.engine.cuda.backend.why_unavailable", lambda: reason)
            monkeypatch.setattr("minfer.cuda.runtime.device", lambda: gpu)
            if model:
                (tmp_path / f"{measured.SYNTHETIC}.gguf").touch()

        return set_up

    @staticmethod
    def measure(path):
        assert path.stem == measured.SYNTHETIC
        return {name: replace(bench, file="measured here") for name, bench in BENCHES.items()}, {}

    def test_without_a_gpu_the_records_speak(self, here):
        here(reason="no driver")
        found = measured.speeds(RECORDS, self.measure)
        assert not found.live and found.benches == BENCHES and found.sweep == SWEEP
        assert found.note.startswith("From records: NVIDIA H200, driver 580") and "no driver" in found.note
        assert [row["engine"] for row in found.rows()] == [*BENCHES, "llama.cpp"]
        rate = f"{BENCHES['f16-wgmma'].result('pp2048').avg_ts:,.0f}"
        assert rate in repr(found) and rate in found._repr_html_()

    def test_without_the_model_it_says_how_to_get_it(self, here):
        here(model=False)
        assert "or `minfer synth qwen2.5-7b`" in measured.speeds(RECORDS, self.measure).note

    def test_with_both_it_measures(self, here):
        here()
        found = measured.speeds(RECORDS, self.measure)
        assert found.live and found.note.startswith("Measured just now") and found.sweep is None
        assert {bench.file for bench in found.benches.values()} == {"measured here"}
        assert found.benches.keys() == set(ROUTES) - {"auto"} and found.peer is not None
        speeds = [bench.result("pp2048").avg_ts for bench in found.benches.values()]
        assert speeds == sorted(speeds)

    def test_on_another_gpu_there_is_no_peer(self, here):
        here("NVIDIA GeForce RTX 4090", "sm_89")
        found = measured.speeds(RECORDS, self.measure)
        assert found.live and found.peer is None and found.device == RTX_4090

    def test_an_unknown_gpu_leaves_the_records(self, here):
        here("NVIDIA T4000", "sm_80")
        assert "NVIDIA T4000 is not in the table" in measured.speeds(RECORDS, self.measure).note

    @pytest.mark.parametrize(
        "error",
        [
            EngineError("5.56 GB of 4.00 GB free"),
            LaunchRefused("gemm", "", 9, "5.56 GB of 4.00 GB free", "NVIDIA H200", "bytes"),
            CompileError("gemm", "", "sm_90a", "5.56 GB of 4.00 GB free"),
            MemoryError("5.56 GB of 4.00 GB free"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_what_goes_wrong_is_the_reason(self, here, error):
        here()

        def measure(path):
            raise error

        found = measured.speeds(RECORDS, measure)
        assert not found.live and "5.56 GB of 4.00 GB free" in found.note and found.benches == BENCHES

    def test_no_route_can_run(self, here):
        here()
        found = measured.speeds(RECORDS, lambda path: ({}, {"f16": "no room", "mmq": "no room"}))
        assert not found.live and found.why == "f16: no room; mmq: no room" and found.benches == BENCHES


class TestBenchAll:
    """The real measurement, on a device that remembers what was launched."""

    @pytest.fixture
    def gpu(self, monkeypatch):
        made = install(monkeypatch, FakeGpu())
        monkeypatch.setattr(engine_bench, "time", Clock(made))
        monkeypatch.setattr(route_benches, "GpuDevice", lambda: made)
        monkeypatch.setattr(route_benches, "compile_ahead", lambda kernels, arch, tell: None)
        monkeypatch.setattr("minfer.cuda.runtime.device", lambda: made.gpu)
        monkeypatch.setattr(measured, "TOKENS", 64)
        monkeypatch.setattr(measured, "DECODED", 2)
        return made

    def test_every_route_as_the_command_line_does_it(self, gpu, capsys):
        benches, failed = measured.bench_all(TINY)
        assert benches.keys() == set(ROUTES) - {"auto"} and failed == {}
        for name, bench in benches.items():
            bench.check()
            assert bench.route == name and [result.test for result in bench.results] == ["pp64", "tg2"]
            assert bench.command.startswith("minfer bench -p 64 -n 2 --route f16,") and name in bench.command
        assert capsys.readouterr() == ("", "")

    def test_a_route_that_cannot_run_leaves_the_others(self, gpu, monkeypatch):
        run = route_benches.bench_session

        def without_room(session, *rest):
            if session.backend.route.name == "mmq":
                raise MemoryError("the weights take 13 GB, 4 GB are free")
            return run(session, *rest)

        monkeypatch.setattr(route_benches, "bench_session", without_room)
        benches, failed = measured.bench_all(TINY)
        assert benches.keys() == set(ROUTES) - {"auto", "mmq"}
        assert failed == {"mmq": "the weights take 13 GB, 4 GB are free"}

    def test_a_fault_of_ours_is_not_passed_over(self, gpu, monkeypatch):
        def broken(session, *rest):
            raise AttributeError("no such thing")

        monkeypatch.setattr(route_benches, "bench_session", broken)
        with pytest.raises(AttributeError, match="no such thing"):
            measured.bench_all(TINY)
