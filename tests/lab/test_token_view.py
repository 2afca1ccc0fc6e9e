"""A decoded token: its bytes, its kernels, its launches, and the figures behind its speed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.arithmetic.work import QWEN25_7B, decode_bytes
from minfer.campaign.records import GpuTests, Wall, load_records
from minfer.cuda.token import TOKEN_STEPS
from minfer.lab import decode_view, token_view
from minfer.lab.token_view import READ, TYPES, token


@pytest.fixture(scope="module")
def records():
    return load_records(device="h200")


def test_the_bytes_add_up():
    rows = token_view.byte_rows(context=2048)
    assert sum(row["MB"] for row in rows) * 1e6 == pytest.approx(decode_bytes(QWEN25_7B, TYPES, 2048))
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["matrices"] or 0 for row in rows) == 7 * 28 + 1
    assert {row["format"] for row in rows if row["stack"] == "down"} == {"Q4_K", "Q6_K"}


def test_the_limit():
    assert token(4240e9, context=0, launch=0).tok_s == pytest.approx(970, abs=1)
    assert token_view.limits()[0]["at most (tok/s)"] == pytest.approx(token(context=0, launch=0).tok_s)


def test_one_token_waits_for_bytes_and_many_for_the_tensor_cores():
    walls = {row["tokens"]: row["wall"] for row in token_view.intensity_rows()}
    assert walls[1] == walls[16] == "memory" and walls[2048] == "compute"


@given(st.floats(1e11, 1e13), st.integers(0, 40000), st.integers(1, 16), st.floats(0, 1e-4))
def test_a_token_is_its_parts(bandwidth, context, layer, launch):
    found = token(bandwidth, context, layer, launch)
    assert found.kernels == 28 * layer + 3
    assert found.seconds == pytest.approx(found.matrices + found.cache + found.kernels * launch)
    assert found.tok_s <= token(bandwidth, 0, layer, 0).tok_s * (1 + 1e-12)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="bandwidth is above 0"):
        token(bandwidth=0)


def test_the_steps_kernels():
    """One an operation: every step embeds, attends and multiplies. Or two in all."""
    plain = token_view.step_kernels()
    assert plain[0] == "embedding" and plain.count("attention_decode") == token_view.layers()
    assert sum(row["launches"] for row in token_view.kernel_rows()) == len(plain)
    assert token_view.token_kernels() == 297
    assert token_view.step_kernels(fused=True) == ("embedding", "decode_token")


def test_launches(records, sound):
    rows = {row["way"]: row for row in decode_view.launch_rows(records, 300)}
    one, graph = rows["a launch from Python"], rows["a kernel of a replayed graph"]
    assert one["ms a token"] == pytest.approx(one["us"] * 0.3)
    assert graph["ms a token"] < one["ms a token"] / 4
    assert sound(decode_view.draw_launches(records, 300)).rows == list(rows.values())


def test_one_kernel_beside_many(records):
    run = next(record for record in records if isinstance(record, GpuTests))
    measured = {f"7B token, {way}: ms": 1.25 for way in decode_view.STEPS}
    measured["7B token, one kernel an operation: ms"] = 2.0
    rows = decode_view.step_rows([replace(run, measured=measured)])
    assert [row["launched as"] for row in rows] == ["one kernel an operation", *TOKEN_STEPS]
    assert {row["tok/s"] for row in rows[1:]} == {800} and rows[0]["tok/s"] == 500
    assert rows[1]["of the read"] == pytest.approx(800 / token().tok_s)
    assert decode_view.step_rows([]) == []


def test_products(records, sound):
    rows = decode_view.gemv_rows(records)
    assert {"q+k+v", "o", "gate+up", "down", "lm_head"} <= {row["product"] for row in rows}
    for row in rows:
        assert row["MB"] / row["us"] * 1e3 == pytest.approx(row["overlapping (GB/s)"], rel=0.01)
        assert row["of the read"] == row["overlapping (GB/s)"] * 1e9 / READ
        assert row["of the read"] < 1.05
    assert sound(decode_view.draw_gemv(records)).rows == rows


def test_repacked_gemvs_stand_beside_blocks(records):
    run = next(r for r in records if isinstance(r, GpuTests))
    names = [f"gemv Q6_K 3584x18944{layout} pdl: us" for layout in ("", " planes")]
    (row,) = decode_view.repacked_rows([replace(run, measured=dict(zip(names, (22.5, 18.0), strict=True)))])
    assert row["product"] == "down" and row["times"] == 1.25
    assert decode_view.repacked_rows([]) == []


def test_the_time_of_a_token(records, sound):
    rows = decode_view.time_rows(records)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sound(decode_view.draw_time(records)).rows == rows


def test_walls_of_a_decode(records, sound):
    wall = next(record for record in records if isinstance(record, Wall))
    picture = sound(decode_view.draw_walls([replace(wall, phase="decode", tokens=1)]))
    assert {bucket.name for bucket in wall.buckets} <= {row["bucket"] for row in picture.rows}


def test_decode_attention(records):
    rows = decode_view.attention_rows(records)
    assert [row["cache rows"] for row in rows] == sorted(row["cache rows"] for row in rows)
    assert all(row["us"] > row["reading alone (us)"] for row in rows)


def test_pictures_of_arithmetic(sound):
    sound(token_view.draw_intensity())
    picture = sound(token_view.draw_token(token(context=2048, launch=1e-6)))
    assert [row["part"] for row in picture.rows] == ["matrices", "KV cache", "launches"]


def test_missing_figures_are_told(sound):
    for picture in (
        decode_view.draw_launches([], 300), decode_view.draw_gemv([]), decode_view.draw_time([]),
        decode_view.draw_walls([]),
    ):  # fmt: skip
        assert "No record holds" in sound(picture).alt


def test_the_explorer_follows_its_sliders():
    explorer = token_view.token_explorer()
    before = explorer.report.tok_s
    explorer.set(launch=8000, layer=10)
    assert explorer.report.kernels == 283 and explorer.report.tok_s < before / 2
    assert "283 kernels" in explorer.panel.value
