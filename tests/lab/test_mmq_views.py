"""What notebooks 6 and 7 show: a block's bytes, chunks, words, ledgers, the phantom's launch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.arithmetic.devices import DEVICES, GB10, H200
from minfer.arithmetic.reference import FOLDER
from minfer.campaign.against import SHAPES
from minfer.campaign.records import load_records
from minfer.lab import block_view, mmq_measured, mmq_view, phantom_view, quantize_view
from minfer.lab.mmq_widgets import block_explorer, depth_explorer, phantom_explorer, words_explorer

DEVICE_PAIR = [GB10, H200]


class TestBlock:
    @pytest.mark.parametrize("row", [0, 3, 767])
    def test_byte_by_byte_equals_the_model(self, row):
        block = block_view.real_block(row)
        mine = np.array([block.weight(i) for i in range(256)])
        np.testing.assert_allclose(mine, block_view.by_the_model(block), rtol=2e-7, atol=1e-9)

    def test_there_is_no_such_block(self):
        with pytest.raises(ValueError, match=r"row 768, block 0: .* has 768 rows of 1 blocks"):
            block_view.real_block(768)
        with pytest.raises(ValueError, match="byte 144"):
            block_view.field_of(144)

    def test_fields_cover_the_block(self):
        covered = [at for field in block_view.FIELDS for at in range(field.start, field.stop)]
        assert covered == list(range(144))

    @settings(max_examples=40)
    @given(st.integers(0, 143), st.integers(0, 255))
    def test_a_byte_has_a_say_in_a_weight_exactly_when_changing_it_changes_that(self, at, weight):
        block = block_view.real_block(5)
        changed = False
        for bit in range(8):
            raw = bytearray(block.raw)
            raw[at] ^= 1 << bit
            other = block_view.Block(bytes(raw))
            changed |= (
                other.scale(weight // 32) != block.scale(weight // 32)
                or other.quant(weight) != block.quant(weight)
                or at < 4
            )
        assert changed == (weight in block_view.weights_of(at))

    def test_partners_are_mutual(self):
        for at in range(16, 144):
            assert {0, 1, 2, 3} <= block_view.partners(at) and at not in block_view.partners(at)
            assert all(at in block_view.partners(p) for p in block_view.partners(at))

    @pytest.mark.parametrize("at", [0, 3, 4, 8, 12, 16, 143])
    def test_pictures(self, at, sound):
        picture = sound(block_view.draw_block(block_view.real_block(1), at))
        assert sum(row["touched"] for row in picture.rows) == len(block_view.weights_of(at))
        assert block_view.meaning(block_view.real_block(1), at)


class TestChunk:
    def test_parts_cover_the_chunk(self):
        assert [at for _, a, b, _ in quantize_view.PARTS for at in range(a, b)] == list(range(40))

    def test_a_chunk(self, sound):
        chunk = quantize_view.chunk_of(quantize_view.toy_activations())
        assert chunk.sum == chunk.q.sum() and np.abs(chunk.q).max() == 127
        assert chunk.error <= 0.56  # half a step, and what f16 takes from d
        rows = sound(quantize_view.draw_chunk(chunk)).rows
        assert [row["q"] for row in rows] == list(chunk.q)

    def test_every_form_writes_the_reference(self):
        runs = [quantize_view.trace_quantize(form, nt=2, dim=512) for form in ("serial", "tree", "warp")]
        rows = quantize_view.traffic_rows(runs)
        assert all(row["the reference's bits"] for row in rows)
        assert [row["load requests"] for row in rows] == [32, 8, 8]
        assert [row["sectors a load"] for row in rows] == [32.0, 32.0, 16.0]
        for run in runs:
            stored = sum(row["bytes"] for row in run.rows if row["access"] == "store")
            assert stored == run.activations // 32 * 40


class TestWords:
    def test_every_word_is_taken_once(self, sound):
        for chunk in (0, 5):
            rows = sound(mmq_view.draw_words(chunk, 9)).rows
            for operand, count in (("weights", 64), ("activations", 128)):
                places = {(r["row"], r["word"]) for r in rows if r["operand"] == operand}
                assert len(places) == sum(r["operand"] == operand for r in rows) == count

    @pytest.mark.parametrize("chunk", range(8))
    def test_masked_words_are_the_weights(self, chunk):
        block = block_view.real_block(2)
        for lane in (0, 5, 31):
            for row in mmq_view.unpack_rows(block, chunk, lane):
                first = int(row["weights"].split("-")[0])
                taken = list(bytes.fromhex(row["masked"]))[::-1]
                assert taken == [block.quant(first + i) for i in range(4)]


class TestDepth:
    def test_parts_add_up(self):
        for kernel in mmq_view.KERNELS:
            for kd in (4, 8):
                made = mmq_view.config(kernel, kd)
                assert sum(mmq_view.shared_parts(made).values()) == made.shared_bytes

    def test_a_gb10_refuses_the_wide_tile_at_kd_8_alone(self):
        found = {(row["kernel"], row["KD"]): row["blocks, gb10"] for row in mmq_view.depth_rows(DEVICE_PAIR)}
        refused = [key for key, blocks in found.items() if blocks == "0 (refused)"]
        assert refused == [("wide", 8)]
        assert mmq_view.depth("wide", 8, H200).held.blocks > 0

    def test_the_ledger(self):
        r1, narrow, wide = mmq_view.ledger_rows()
        assert r1["through registers (B)"] == 64 * 144 and narrow["through registers (B)"] == 0
        assert narrow["by cp.async (B)"] == 64 * 8 * 40 + 64 * 144
        assert wide["bytes of weights a kMAC"] == pytest.approx(narrow["bytes of weights a kMAC"] / 2, 0.01)
        assert narrow["words unpacked"] == 4 * r1["words unpacked"] == 4 * 64 * 256 // 4

    @pytest.mark.parametrize("kernel", mmq_view.KERNELS)
    def test_pictures(self, kernel, sound):
        sound(mmq_view.draw_depth(mmq_view.depth(kernel, 8, GB10)))
        sound(mmq_view.draw_shared(DEVICE_PAIR))

    @pytest.mark.slow
    def test_registers_allow_as_many_blocks_as_the_compilers(self):
        from minfer.arithmetic.occupancy import blocks_per_sm
        from minfer.cuda.mmq import mmq
        from minfer.cuda.runtime import compile_kernel

        known = json.loads((FOLDER / "mmq-registers.json").read_text())["registers"]
        assert set(known) == {f"{kernel} KD={kd}" for kernel in mmq_view.KERNELS for kd in (4, 8)}
        made = mmq_view.config("narrow", 8)
        found = compile_kernel(mmq(made), H200.arch).resources.registers
        held = blocks_per_sm(H200, made.threads, found, made.shared_bytes)
        assert held.blocks == mmq_view.depth("narrow", 8, H200).held.blocks

    def test_unknown_registers(self):
        with pytest.raises(KeyError, match="no registers of 'narrow KD=8' on sm_75"):
            mmq_view.registers("narrow", 8, "sm_75")


@pytest.mark.slow
def test_simulated_kernels_agree_bit_by_bit():
    runs = [mmq_view.simulate(kernel, kd) for kernel, kd in (("R1", 8), ("narrow", 4), ("wide", 4))]
    for row in mmq_view.toy_rows(runs):
        assert row["integer sums exact"] and row["error under 1e-6"] and row["same bits as the first"]
        assert row["unwritten"] == 0


class TestMeasured:
    def test_forms_of_the_quantize_pass(self):
        rows = quantize_view.measured_rows(quantize_view.newest_record())
        assert [row["form"] for row in rows] == list(quantize_view.MEASURED)
        assert all(0 < row["GB/s"] < 4_280 * 1.03 for row in rows)

    def test_routes(self):
        records = load_records()
        rows = {row["route"]: row for row in mmq_measured.route_rows(records)}
        assert rows.keys() >= {"mmq", "mmq_raw", "mmq_raw_wide", "f16"}
        assert rows["mmq"]["of R1"] == rows["f16"]["of f16"] == "x1.00"
        assert "NVIDIA H200" in mmq_measured.route_origins(records)

    @pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K"])
    def test_the_ladder(self, weight_type, sound):
        records = load_records()
        rows = sound(mmq_measured.draw_ladder(records, weight_type)).rows
        assert rows == mmq_measured.ladder_rows(records, weight_type)
        names = [row["step"] for row in rows]
        assert names[:2] == ["R1", "raw narrow"] and "128 x 128 tile" in names
        assert rows[0]["on down"] == "" and rows[1]["on down"].endswith("%")
        narrow, padded = (rows[names.index(name)] for name in ("raw narrow", "padded rows"))
        assert padded["on down"] == f"{padded['down'] / narrow['down'] - 1:+.0%} of raw narrow"

    def test_int8_on_hopper(self):
        rows = mmq_measured.hopper_rows(load_records())
        assert [row["product"] for row in rows] == list(SHAPES)
        assert all(2 < row["us/GMAC"] < 3.8 for row in rows) and mmq_measured.hopper_rows([]) == []

    def test_products_of_whole_prefills(self):
        rows = {row["route"]: row for row in mmq_measured.product_rows(load_records())}
        assert rows["mmq"]["all"] > rows["mmq_raw_wide"]["all"] > rows["llama.cpp"]["all"]
        assert rows["llama.cpp"]["o"] == "" and rows["mmq"]["o"] > 0

    def test_figures_that_no_record_holds(self, sound):
        for name in ("ladder", "tried", "route", "product"):
            assert getattr(mmq_measured, f"{name}_rows")([]) == []
        assert "missing" in sound(mmq_measured.draw_ladder([])).rows[0]

    def test_the_phantom(self):
        assert "1,024 B over the cap: 100 % of the outputs unwritten (NVIDIA H200" in phantom_view.recorded()


class TestPhantom:
    def test_unheeded_and_over_the_cap_nothing_is_written(self):
        tried = phantom_view.attempt("wide", 8, GB10, simulate=False)
        assert (tried.opt_in, tried.launch) == ("CUDA_ERROR_INVALID_VALUE",) * 2
        assert tried.refusal is None and tried.unwritten == tried.out.size
        with pytest.raises(phantom_view.NothingRan, match="90 of 90 outputs were never written; the driver"):
            phantom_view.speed(tried, 0.96)
        assert phantom_view.verdict(tried, 0.96).endswith("101,376 are allowed: no speed is reported")

    def test_heeded_it_is_refused_before_the_launch(self):
        tried = phantom_view.attempt("wide", 8, GB10, heed=True, simulate=False)
        assert tried.launch == "not called"
        assert "asks for 109568 bytes of shared memory a block, allowed 101376" in tried.refusal
        assert phantom_view.verdict(tried, 1.0).startswith("refused: mmq [Q4_K raw 128x64 kd=8]")

    def test_what_fits_runs(self):
        for kernel, kd, device in (("wide", 4, GB10), ("wide", 8, H200)):
            tried = phantom_view.attempt(kernel, kd, device, simulate=False)
            assert (tried.opt_in, tried.launch, tried.unwritten) == ("CUDA_SUCCESS", "CUDA_SUCCESS", 0)
            assert phantom_view.speed(tried, 2.0) == 1024

    def test_a_buffer_that_was_used_before_passes_for_a_result(self):
        """Why outputs are poisoned: what a good kernel left is what the phantom seems to have computed."""
        good = phantom_view.attempt("narrow", 8, GB10, simulate=False)
        stale = phantom_view.attempt("wide", 8, GB10, before=good.out, simulate=False)
        assert stale.launch == "CUDA_ERROR_INVALID_VALUE"
        assert phantom_view.parity(stale) and phantom_view.speed(stale, 1.0)
        assert not phantom_view.parity(phantom_view.attempt("wide", 8, GB10, simulate=False))

    @pytest.mark.slow
    def test_the_simulated_kernel_writes_what_numpy_says(self):
        simulated = phantom_view.attempt("wide", 4, GB10)
        np.testing.assert_allclose(
            simulated.out, phantom_view.attempt("wide", 4, GB10, simulate=False).out, rtol=1e-4, atol=1e-5
        )

    def test_the_cap(self):
        rows = {(r["wide tile"], r["KD"]): r for r in phantom_view.cap_rows(DEVICE_PAIR)}
        assert rows["seed", 8]["asked (B)"] == 135_168 and rows["seed", 4]["asked (B)"] == 86_016
        assert rows["seed", 8]["gb10 (101,376 B)"] == "33,792 B over"
        assert all(row["h200 (232,448 B)"] == "fits" for row in rows.values())

    def test_what_the_clock_timed(self, sound):
        found = phantom_view.walls()
        assert found.phantom > found.f16  # so something that is no small matter went on running
        assert found.q6_share == pytest.approx(0.1496, abs=1e-4)
        assert 0 < found.other < 0.4
        assert found.gemm + found.other == pytest.approx(found.r1)
        assert phantom_view.needed_tops(found) * 1e12 < GB10.tensor_peak("int8") / 5
        rows = sound(phantom_view.draw_walls(found)).rows
        phantom = sum(row["seconds"] for row in rows if row["prefill"] == "the phantom")
        assert phantom == pytest.approx(found.phantom)

    @pytest.mark.parametrize("kd", [4, 8])
    def test_pictures(self, kd, sound):
        tried = phantom_view.attempt("wide", kd, GB10, simulate=False)
        rows = sound(phantom_view.draw_attempt(tried, "wide", kd)).rows
        assert sum(not row.get("written", True) for row in rows) == tried.unwritten


class TestWidgets:
    def test_block(self, sound):
        explorer = block_explorer()
        assert "weight 21" in explorer.panel.value and "weight 53" in explorer.panel.value
        explorer.set(at=4, row=7)
        assert "scale 0" in explorer.panel.value and "upper two bits of scale 4" in explorer.panel.value
        sound(explorer.picture)

    def test_words(self, sound):
        explorer = words_explorer()
        explorer.set(chunk=7, lane=31)
        assert "Lane 31 takes row 7" in explorer.panel.value
        sound(explorer.picture)

    def test_depth(self, sound):
        explorer = depth_explorer()
        assert "cannot run on NVIDIA GB10" in explorer.panel.value
        explorer.set(kd=4)
        assert "1 block an SM" in explorer.panel.value
        for key in DEVICES:
            explorer.set(device=key)
        sound(explorer.picture)

    def test_phantom(self, sound):
        explorer = phantom_explorer()
        assert "no speed is reported" in explorer.panel.value
        explorer.set(heed=True)
        assert "raised" in explorer.panel.value and "asks for 109568 bytes" in explorer.panel.value
        explorer.set(device="h200")
        assert "there is something to time" in explorer.panel.value
        explorer.set(stages=4)
        sound(explorer.picture)
