"""The lane player: steps of a simulated block, what shared memory holds, conflicts, hazards, the source."""

from dataclasses import replace

import numpy as np
import pytest
from numba import cuda

from minfer.cuda import ptx, simulator
from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.trace import Op, Trace, faulty_rows
from minfer.lab.lane_film import EMPTY, FLIGHT, WRITTEN, film, source_lines
from minfer.lab.lane_player import (
    LanePlayer,
    gemm_film,
    gemm_player,
    gemm_tiles,
    hopper_film,
    hopper_player,
    with_names,
)
from minfer.lab.lane_view import draw_frame, frame_html, source_html


def steps_of(kind, film_):
    return [step for step in film_.steps if step.kind == kind]


class TestFilm:
    def test_a_step_is_one_instruction_of_one_warp(self):
        steps = gemm_film("padded").steps
        assert [step.number for step in steps] == list(range(len(steps)))
        assert {step.warp for step in steps} == {0, 1}
        # 3 k-steps of 16: each warp copies 32 rows of A and B, loads 2 x 16 rows of A and 16 of B
        assert len(steps_of("copy", gemm_film("padded"))) == 3 * 2 * 2
        assert len(steps_of("load", gemm_film("padded"))) == 3 * 2 * 3
        assert len(steps_of("mma", gemm_film("padded"))) == 3 * 2 * 4
        assert all(step.lanes == tuple(range(32)) for step in steps if step.kind in ("copy", "load"))

    def test_every_warp_keeps_its_programs_order(self):
        for warp in (0, 1):
            kinds = [step.kind for step in gemm_film("padded").steps if step.warp == warp]
            assert kinds[:8] == ["copy", "copy", "wait", "barrier", "copy", "copy", "load", "load"]

    def test_copies_are_in_flight_until_their_group_is_waited_for(self):
        shown = gemm_film("padded")
        issue, wait = steps_of("copy", shown)[0], steps_of("wait", shown)[0]
        first = issue.addresses[0] // 4
        assert shown.states(issue.number)[first] == EMPTY
        assert shown.states(issue.number + 1)[first] == FLIGHT
        assert (issue.addresses[0], 16) in wait.landed and len(wait.landed) == 64
        assert shown.states(wait.number + 1)[first] == WRITTEN

    def test_a_clean_kernel_reads_only_what_is_there(self):
        for layout in ("plain", "padded", "swizzled"):
            shown = gemm_film(layout)
            assert shown.hazards == []
            for step in steps_of("load", shown):
                assert {word["state"] for word in shown.frame(step.number).words} == {"written"}

    def test_conflicts_are_the_bank_models(self):
        assert gemm_film("padded").conflicts == gemm_film("swizzled").conflicts == []
        plain = gemm_film("plain")
        assert [plain.steps[n].op for n in plain.conflicts] == [Op.LDMATRIX] * 18
        frame = plain.frame(plain.conflicts[0])
        assert frame.load == [2] * 32 and all(word["conflict"] for word in frame.words)

    def test_words_are_placed_in_their_tile(self):
        shown = gemm_film("swizzled")
        frame = shown.frame(steps_of("load", shown)[0].number)
        assert {word["tile"] for word in frame.words} == {"A, stage 0"}
        for word in frame.words:
            tile = shown.tiles[word["tile"]]
            assert tile.start + tile.address(word["row"], word["byte"]) == 4 * word["word"]
        # lane l names row l % 16, 16-byte column l // 16
        assert {(w["lane"] % 16, w["lane"] // 16) for w in frame.words} == {
            (w["row"], w["byte"] // 16) for w in frame.words
        }

    def test_a_late_wait_is_a_hazard_in_every_load(self):
        broken = gemm_film("padded", "late wait")
        assert broken.hazards == [step.number for step in steps_of("load", broken)]
        frame = broken.frame(broken.hazards[0])
        assert {finding.kind for finding in frame.step.findings} == {"read before landing"}
        assert all(word["hazard"] and word["state"] == "in flight" for word in frame.words)

    def test_jumps_wrap_around(self):
        plain = gemm_film("plain")
        first, last = plain.conflicts[0], plain.conflicts[-1]
        assert plain.next(plain.conflicts, 0) == first
        assert plain.next(plain.conflicts, last) == first
        assert plain.next(plain.hazards, 0) is None

    def test_an_empty_trace_and_an_absent_block_are_told(self):
        with pytest.raises(ValueError, match="the trace is empty"):
            film(Trace())
        config = GemmConfig(32, 32, 16, warps=2, warps_n=1)
        trace, a = Trace(), np.zeros((32, 16), np.float16)
        c = np.zeros((32, 32), np.float32)
        simulator.launch(make_gemm(config), 1, a, a, c, 32, 32, 16, trace=trace)
        with pytest.raises(ValueError, match="block 7 of gemm_f16 did nothing"):
            film(trace, block=7)
        assert faulty_rows(trace) == []

    def test_tiles_fill_the_ring(self):
        config = GemmConfig(32, 32, 16, warps=2, warps_n=1, layout="swizzled")
        words = [word for tile in gemm_tiles(config).values() for word in tile.words]
        assert sorted(words) == list(range(config.shared_bytes // 4))


def column_film():
    """A warp that reads a row and writes a column of 32 rows of 40 words."""

    def column(x, out):
        out[cuda.threadIdx.x * 40] = x[cuda.threadIdx.x]

    arguments = (Argument("x", "in", "float32"), Argument("out", "out", "float32"))
    trace = Trace()
    x, out = np.zeros(32, np.float32), np.zeros(32 * 40, np.float32)
    simulator.launch(Kernel("column", None, column, 32, 0, arguments), 1, x, out, trace=trace)
    return film(trace)


class TestPlantedFaults:
    def test_only_the_copy_changes(self):
        kernel = make_gemm(GemmConfig())
        other = with_names(kernel, wait=ptx.cp_async_wait_group(1))
        names = kernel.function.__code__.co_freevars
        cell = names.index("wait")
        assert other.function.__closure__[cell] is not kernel.function.__closure__[cell]
        assert other.function.__code__ is kernel.function.__code__
        assert kernel.function.__closure__[cell].cell_contents is ptx.cp_async_wait_group(0)

    def test_unknown_names_are_told(self):
        with pytest.raises(KeyError, match="no fault 'early wait': choose one of none, late wait"):
            gemm_film("padded", "early wait")
        with pytest.raises(KeyError, match="gemm_f16 uses no barrier; it has"):
            with_names(make_gemm(GemmConfig()), barrier=None)


class TestView:
    @pytest.mark.parametrize("kind", ["copy", "wait", "load", "mma", "barrier", "global"])
    def test_every_kind_of_step_can_be_drawn(self, kind):
        shown = gemm_film("plain")
        number = steps_of(kind, shown)[0].number
        picture = draw_frame(shown.frame(number))
        assert f"step {number + 1} of {len(shown)}" in picture.alt
        panels = {row["panel"] for row in picture.rows}
        below = {"copy": {"words", "load"}, "load": {"words", "load"}, "global": {"lines"}}
        assert panels == {"steps"} | below.get(kind, {"load"})

    def test_the_picture_holds_its_data(self, sound):
        shown = gemm_film("plain")
        picture = sound(draw_frame(shown.frame(shown.conflicts[0])))
        load = [row["words"] for row in picture.rows if row["panel"] == "load"]
        assert load == [2] * 32
        steps = [row for row in picture.rows if row["panel"] == "steps"]
        assert sum(row["degree"] == 2 for row in steps) == 18

    def test_without_tiles_shared_memory_has_all_the_room(self, sound):
        shown = replace(gemm_film("plain"), tiles={})
        picture = sound(draw_frame(shown.frame(shown.conflicts[0])))
        assert len(picture.figure.axes) == 3
        assert {row["tile"] for row in picture.rows if row["panel"] == "words"} == {None}

    def test_a_scattered_access_shows_the_sectors_that_it_moves(self, sound):
        shown = column_film()
        assert shown.shared_bytes == 0 and shown.scattered == [1]
        picture = sound(draw_frame(shown.frame(0)))  # a row: 32 neighbours
        words = [row for row in picture.rows if row["panel"] == "lines"]
        assert [row["lane"] for row in words] == list(range(32))
        picture = sound(draw_frame(shown.frame(1)))  # a column of rows of 40 words, 160 B
        words = [row for row in picture.rows if row["panel"] == "lines"]
        assert len(words) == 8 * 32 and sorted(row["lane"] for row in words if row["lane"] is not None) == [
            *range(32)
        ]
        axes = picture.figure.axes[1]
        assert axes.get_yticklabels()[1].get_text() == "out + 128"
        assert "128 of 1,024 moved bytes" in "".join(text.get_text() for text in axes.texts)
        assert "32 sectors where 4 would do" in frame_html(shown.frame(1))

    def test_a_cell_of_a_notebook_is_called_so(self):
        place = gemm_film("plain").steps[0].place
        assert place.file_name == "gemm.py"
        assert replace(place, file="/tmp/ipykernel_7/123.py").file_name == "this notebook"

    def test_the_source_line_is_the_one_that_runs(self):
        shown = gemm_film("padded")
        for step in shown.steps:
            (line,) = (row["text"] for row in source_lines(step.place) if row["current"])
            word = {"copy": "copy_", "wait": "wait()", "barrier": "syncthreads", "global": "store("}
            assert word.get(step.kind, "multiply_k16(") in line

    def test_text_names_the_fault_and_marks_the_line(self):
        broken = gemm_film("padded", "late wait")
        text = frame_html(broken.frame(broken.hazards[0]))
        assert "read before landing: 128 words of this step; the other side is staging.py" in text
        assert text.count("#FFF3B0") == 1 and "multiply_k16" in text

    def test_a_kernel_without_a_file_has_no_source(self):
        step = gemm_film("padded").steps[0]
        nowhere = type(step.place)("<string>", 3, "kernel")
        assert "cannot be read" in source_html(replace(step, chain=(nowhere,)))


class TestHopper:
    """A warp that loads by TMA, warpgroups that multiply by wgmma."""

    def test_what_wgmma_reads_has_landed(self):
        shown = hopper_film()
        assert shown.hazards == shown.conflicts == [] and shown.warps == 12
        reads = [step for step in shown.steps if step.op is Op.WGMMA_READ_BEGIN]
        # 3 k-tiles, 2 warpgroups, A and B
        assert len(reads) == 12
        tiles = [{word["tile"][0] for word in shown.frame(step.number).words} for step in reads]
        assert tiles.count({"A"}) == tiles.count({"B"}) == 6
        assert {word["state"] for step in reads for word in shown.frame(step.number).words} == {"written"}

    def test_a_load_is_in_flight_until_it_lands(self):
        shown = hopper_film()
        of_a = 128 * 128  # bytes; B's tile, half as large, is asked for first
        issue = next(step for step in shown.steps if step.op is Op.TMA_ISSUE and step.width == of_a)
        land = next(step for step in shown.steps if step.op is Op.TMA_LAND and step.landed[0][1] == of_a)
        assert issue.warp == 0
        assert shown.states(issue.number)[0] == EMPTY
        assert shown.states(issue.number + 1)[0] == FLIGHT
        assert land.landed == ((0, issue.width),) and shown.states(land.number + 1)[0] == WRITTEN

    def test_every_kind_can_be_drawn(self, sound):
        player = hopper_player()
        for kind in {step.kind: step for step in player.film.steps}.values():
            player.set(step=kind.number)
            assert "traceback" not in player.panel.value
            sound(player.picture)


class TestPlayer:
    def test_it_steps_and_jumps(self):
        player = gemm_player(step=0)
        assert "Step 1 of 82" in player.panel.value and "cp.async" in player.panel.value
        player.jump("conflicts")
        assert player.values["step"] == player.film.conflicts[0]
        assert "2-way conflict: 8 wavefronts where 4 would do" in player.panel.value
        assert player.buttons["hazards"].disabled and not player.buttons["conflicts"].disabled
        player.set(name="padded rows, wait missing")
        assert player.buttons["conflicts"].disabled
        player.buttons["hazards"].click()
        assert "read before landing" in player.panel.value
        player.jump("conflicts")
        assert "read before landing" in player.panel.value

    def test_it_begins_at_what_is_to_be_mended(self):
        player = LanePlayer({"column": column_film()})
        assert player.values["step"] == 1 and "32 sectors where 4 would do" in player.panel.value
        assert player.buttons["conflicts"].disabled and not player.buttons["scattered"].disabled
