"""The pure functions behind the figures, and that the figures draw them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.arithmetic.banks import padded
from minfer.arithmetic.devices import DEVICES, GB10, H200
from minfer.arithmetic.ledger import GemmTile, gemm_ledger
from minfer.arithmetic.occupancy import blocks_per_sm
from minfer.cuda.tile.maps import Fragment, holders
from minfer.cuda.tile.shared import SharedTile
from minfer.lab import bank_view, fragment_view, occupancy_view, traffic_view
from minfer.lab.picture import Picture
from minfer.lab.style import SEQUENCE, figure, label, title


class TestOccupancy:
    def test_the_staircase_agrees_with_the_arithmetic(self):
        rows = occupancy_view.shared_curve(GB10, 256, 96)
        assert rows[-1]["shared_bytes"] == GB10.shared_per_block
        for before, row in itertools.pairwise(rows):
            assert row["blocks"] <= before["blocks"]
            assert blocks_per_sm(GB10, 256, 96, row["shared_bytes"]).blocks == row["blocks"]
            assert blocks_per_sm(GB10, 256, 96, before["shared_bytes"] + 1).blocks == row["blocks"]

    def test_registers_step_at_the_allocation_unit(self):
        rows = occupancy_view.register_curve(H200, 256, 0)
        assert rows[0]["limiter"] == "warps"
        assert rows[-1]["registers"] == 255
        assert {row["blocks"] for row in rows} == {8, 6, 5, 4, 3, 2, 1}

    @pytest.mark.parametrize("key", ["gb10", "rtx3090", "h200"])
    def test_curves(self, key, sound):
        marks = {"small": 16_384, "TKV 64": 69_376, "KD 8": 135_168}
        picture = sound(occupancy_view.draw_curves(DEVICES[key], 256, 96, marks))
        assert {row["axis"] for row in picture.rows} == {"shared", "registers"}

    def test_barriers_are_listed_only_where_they_limit(self):
        names = [row["resource"] for row in occupancy_view.limits_rows(blocks_per_sm(H200, 256, 96, 0))]
        assert "named barriers" not in names
        crowded = occupancy_view.limits_rows(blocks_per_sm(H200, 32, 16, 0, barriers=16))
        assert {"resource": "named barriers", "blocks": 4, "limiting": True} in crowded


class TestBanks:
    def test_words_carry_their_bank(self):
        tile = SharedTile(16, 128, padding=16)
        rows = bank_view.words(tile.address, bank_view.ACCESSES["ldmatrix.x4"], 128)
        assert len(rows) == 16 * 32
        assert all(row["bank"] == (row["row"] * 144 + row["word"] * 4) // 4 % 32 for row in rows)
        assert sum(row["read"] for row in rows) == 8 * 4

    @pytest.mark.parametrize("access", bank_view.ACCESSES)
    def test_an_access_marks_what_its_request_asks_for(self, access):
        how = bank_view.ACCESSES[access]
        tile = SharedTile(32, 128).address
        for phase, words in enumerate(how.request(tile).words):
            marked = {
                (r["bank"], r["address"] // 4) for r in bank_view.words(tile, how, 128, phase) if r["read"]
            }
            assert marked == set(words)

    @pytest.mark.parametrize(
        "layout", [SharedTile(32, 256), SharedTile(32, 256, 16), SharedTile(32, 64, 0, 64)]
    )
    @pytest.mark.parametrize("access", bank_view.ACCESSES)
    def test_maps(self, layout, access, sound):
        if access == "row" and layout.row_bytes < 128:
            pytest.skip("a row of 32 words does not fit")
        sound(bank_view.draw_bank_map(layout.address, layout.row_bytes, access, 0, "a tile"))

    def test_verdicts(self):
        ask = bank_view.ACCESSES["ldmatrix.x4"].request
        assert bank_view.verdict(ask(padded(256))) == "8-way conflict: 32 wavefronts where 4 would do"
        assert bank_view.verdict(ask(padded(256, 16))) == "no conflict: 4 wavefronts, one a phase"

    def test_padding_sweep(self, sound):
        degrees = {row["pad"]: row["degree"] for row in bank_view.padding_sweep(128)}
        assert (degrees[0], degrees[8], degrees[16]) == (8, 1, 2)
        assert all(degrees[pad] is None for pad in degrees if pad % 8)
        column = {row["pad"]: row["degree"] for row in bank_view.padding_sweep(128, "column")}
        assert (column[0], column[2], column[8], column[1]) == (32, 1, 4, None)
        sound(bank_view.draw_padding(128))

    def test_tables(self):
        assert bank_view.stride_rows([32])[0] == {"stride (words)": 32, "degree": 32, "wavefronts": 32}
        (row,) = bank_view.sector_rows({"scattered": (4096, 4)})
        assert (row["sectors"], row["efficiency"]) == (32, "12.5%")


class TestFragments:
    @pytest.mark.parametrize("dtype", ["f16", "s8"])
    def test_every_element_is_held_once(self, dtype, sound):
        picture = sound(fragment_view.draw_fragments(lane=7, dtype=dtype))
        for use in ("matrix_a", "matrix_b", "accumulator"):
            places = [(row["row"], row["column"]) for row in picture.rows if row["use"] == use]
            assert len(places) == len(set(places)) == (512 if dtype == "s8" and use != "accumulator" else 256)

    def test_the_map_is_the_tile_layers(self):
        fragment = Fragment("matrix_a", "f16")
        for row in fragment_view.elements("matrix_a", "f16"):
            assert holders(fragment)[row["row"], row["column"]] == (row["lane"], row["element"])

    def test_accumulator_and_operand_agree(self):
        assert fragment_view.same_map("f32", "f16")
        assert not fragment_view.same_map("s32", "s8")

    def test_a_lane_of_the_ptx_manual(self):
        """PTX ISA, m16n8k16: groupID = lane / 4, threadID = lane % 4."""
        a, b, c = fragment_view.lane_rows(5)
        assert a["row, column"] == "(1,2) (1,3) (9,2) (9,3) (1,10) (1,11) (9,10) (9,11)"
        assert b["row, column"].startswith("(2,1) (3,1) (10,1) (11,1)")
        assert c["row, column"].startswith("(1,2) (1,3) (9,2) (9,3)")
        assert (a["registers"], b["registers"], c["registers"]) == (4, 4, 8)

    def test_ldmatrix_gives_and_takes(self, sound):
        """PTX ISA, ldmatrix: of row r of an 8 x 8 matrix lane 4 r + c receives elements 2 c and 2 c + 1."""
        picture = sound(fragment_view.draw_ldmatrix())
        assert len(picture.rows) == 256
        for cell in picture.rows:
            row, column = cell["row"] % 8, cell["column"] % 8
            assert cell["lane"] == 4 * row + column // 2
            assert cell["source"] == 8 * cell["matrix"] + row
            assert cell["register"] == f"a{cell['matrix']}"

    def test_ldmatrix_lanes(self):
        rows = fragment_view.ldmatrix_rows()
        assert [(r["lanes"], r["rows"], r["byte column"], r["register"]) for r in rows] == [
            ("0-7", "0-7", 0, "a0"),
            ("8-15", "8-15", 0, "a1"),
            ("16-23", "0-7", 16, "a2"),
            ("24-31", "8-15", 16, "a3"),
        ]


class TestTraffic:
    def test_shares_add_up(self, sound):
        picture = sound(traffic_view.draw_traffic([GemmTile(tm=64), GemmTile(tm=128)]))
        narrow, wide = picture.rows
        assert narrow["a"] + narrow["b"] == narrow["bytes_per_kflop"] == 31.25
        assert (wide["a"], wide["b"]) == (narrow["a"] / 2, narrow["b"])

    @settings(max_examples=25)
    @given(
        st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.sampled_from(list(traffic_view.ORDERS))
    )
    def test_every_block_runs_once(self, n_tiles, m_tiles, resident, order):
        ledger = gemm_ledger(GemmTile(), 64 * n_tiles, 64 * m_tiles, 32)
        rows = traffic_view.waves(ledger, resident, order)
        assert len({(row["n_tile"], row["m_tile"]) for row in rows}) == len(rows) == n_tiles * m_tiles
        assert max(row["wave"] for row in rows) == (len(rows) - 1) // resident

    def test_the_kernels_order_is_the_first(self):
        """blockIdx.x counts token tiles: consecutive blocks share a panel of B."""
        rows = traffic_view.waves(gemm_ledger(GemmTile(), 256, 256, 32), 4, "od-tile-major")
        assert [(row["n_tile"], row["m_tile"]) for row in rows[:5]] == [
            (0, 0),
            (1, 0),
            (2, 0),
            (3, 0),
            (0, 1),
        ]

    def test_the_other_order_does_not_fit_in_l2(self, sound):
        ledger = gemm_ledger(GemmTile(tm=128), 2048, 18944, 3584)
        first, second = traffic_view.order_rows(ledger, 144, GB10.l2)
        assert (first["panels of A"], first["panels of B"], first["fits in L2"]) == (32, 5, True)
        assert (second["panels of A"], second["panels of B"], second["fits in L2"]) == (1, 144, False)
        sound(traffic_view.draw_orders(ledger, 144))


def test_a_picture_is_the_same_twice():
    def draw():
        fig, (ax,) = figure(6.5, 3)
        ax.plot([0, 1], [0, 1], color=SEQUENCE[0])
        title(ax, "a line")
        label(ax, "x (s)", "y (B)")
        return Picture(fig, "A line from one corner to the other", [{"x": 0, "y": 0}])

    assert draw().png() == draw().png()
