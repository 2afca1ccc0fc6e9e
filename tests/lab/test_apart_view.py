"""Where a run's time went, as notebook 0 shows it."""

import pytest

from minfer.campaign.host_wall import Apart, Part
from minfer.lab.apart_view import TakenApart, draw_apart, take_apart
from minfer.lab.generate import TINY, Request

PARTS = (Part("gate+up", 6.0, 30, 60_000_000), Part("attention", 3.0, 30), Part("norms", 1.0, 61))


@pytest.fixture
def taken():
    passes = (Apart("prefill", 7, "a CPU", 9.0, PARTS), Apart("decode", 1, "a CPU", 4.0, PARTS))
    return TakenApart(passes)


def test_the_text_tells_both_times(taken):
    assert taken.conserved() == (
        "prefill of 7 tokens: 9.00 ms as it is, 10.00 ms one operation at a time\n"
        "decode of 1 token: 4.00 ms as it is, 10.00 ms one operation at a time"
    )
    assert "60.0%" in repr(taken) and "10.0" in repr(taken)
    assert "<br>decode of 1 token" in taken._repr_html_()


def test_the_picture_holds_its_rows(taken, sound):
    picture = sound(draw_apart(taken))
    assert picture.rows == taken.rows() and len(picture.rows) == 6


def test_a_request_is_taken_apart():
    taken = take_apart(Request(TINY, "The café opens at 8.", backend="host"))
    assert [one.phase for one in taken.passes] == ["prefill", "decode"] and taken.why is None


def test_what_cannot_be_taken_apart_says_why(tmp_path):
    taken = take_apart(Request(tmp_path / "nowhere.gguf", "Hello"))
    assert taken.passes == () and "nowhere.gguf" in taken.why
    assert "nowhere.gguf" in taken._repr_html_() and "nowhere.gguf" in repr(taken)
    assert draw_apart(taken).rows == []
