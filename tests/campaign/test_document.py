"""The campaign as Markdown and HTML."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign import document as doc
from minfer.campaign.records import load_records
from minfer.campaign.seeds import verdicts
from minfer.campaign.wall_record import newest_walls
from tests.campaign.walls import example_wall

H200 = replace(example_wall(), device="NVIDIA H200")
RAW = replace(
    H200, route="mmq_raw", buckets=[replace(b, weight_bits=4.5 if b.gmac else 0.0) for b in H200.buckets]
)


def test_every_probe_stands_beside_the_seeds_verdict():
    table = doc.campaign_table([])
    assert [row[0].strip("`") for row in table.rows] == list(
        dict.fromkeys(row[0].strip("`") for row in table.rows)
    )
    assert {row[0].strip("`"): row[2] for row in table.rows} == {
        name: verdict.verdict for name, verdict in verdicts().items()
    }
    assert {row[3] for row in table.rows} == {"not run"}


def test_a_wall_as_a_table():
    table = doc.wall_table(H200)
    assert table.columns[:3] == ("bucket", "ms", "share")
    assert table.rows[0][:3] == ("gate+up", "37.800", "37.8%") and table.rows[-1][0] == "host gap"
    assert "100.000 ms" in table.note and "a note" in table.note and H200.origin in table.note


def test_the_seeds_split_beside_ours():
    table = doc.shares_table([H200])
    found = {row[0]: row[1:] for row in table.rows}
    assert found["gate+up"] == ("37.8%", "37.8%") and found["FA"] == ("7.2%", "7.2%")
    assert found["k+v"] == ("", "1.3%")
    assert found["us a GMAC of the products"][0] == "59.5"


def test_byte_widths_and_what_ifs():
    widths = doc.byte_table([H200, RAW])
    assert [row[:3] for row in widths.rows][::4] == [
        ("f16", "gate+up", "16.00"),
        ("mmq_raw", "gate+up", "4.50"),
    ]
    assert "Where w4a16 or w4a8 show more than 7 for q, k and v" in widths.note
    targets = doc.target_table([H200, RAW])
    assert targets.columns == ("route", "as measured", "at f16's", "at mmq_raw's")
    assert targets.rows[0] == ("f16", "20,000", "20,000", "20,000")


def test_only_the_newest_wall_of_a_route_and_device_counts():
    newer = replace(H200, date="2027-01-01T00:00:00+00:00", wall_ms=[100.5])
    decode = replace(H200, phase="decode", tokens=1)
    assert newest_walls([H200, newer, example_wall(), decode]) == [newer]
    assert newest_walls([newer, H200], device="NVIDIA H200") == [newer]
    assert newest_walls([decode], phase="decode") == [decode]


def test_walls_of_one_table_are_of_one_model_and_size():
    """The table with the most routes; of several such, the newest."""
    later = {"date": "2027-01-01T00:00:00+00:00", "file": "later.json"}
    for other in ({"model": "small.gguf"}, {"tokens": 512}):
        wall = replace(H200, **later, **other)
        assert newest_walls([wall, H200, RAW]) == newest_walls([H200, RAW])
        assert newest_walls([H200, wall]) == [wall]
        assert newest_walls([H200, RAW, wall, replace(RAW, **later, **other)]) == newest_walls(
            [wall, replace(RAW, **later, **other)]
        )


def test_markdown_and_html():
    tables = [doc.Table("A | b", ("x", "n", "why"), [("p|q", "1", "<&>")], "A `note`.", words=("why",))]
    text = doc.markdown(tables, "T")
    assert (
        text == "# T\n\n## A | b\n\n| x | n | why |\n| --- | ---: | --- |\n| p\\|q | 1 | <&> |\n\nA `note`.\n"
    )
    page = doc.html(tables, "T")
    assert (
        page.startswith("<!doctype html>")
        and "<td>&lt;&amp;&gt;</td>" in page
        and "<td class=n>1</td>" in page
    )
    assert "http" not in page and "<p>A <code>note</code>.</p>" in page


def test_the_committed_records_make_a_document():
    tables = doc.document(load_records())
    assert tables[0].title == "Probes"
    assert doc.markdown(tables) and doc.html(tables)


@pytest.mark.parametrize("walls", [[H200], [H200, RAW]])
def test_a_document_with_walls(walls):
    titles = [table.title for table in doc.document(walls)]
    assert titles[:4] == ["Probes", "The seed's split beside ours", "Byte widths", "What if"]
    assert len(titles) == 4 + len(walls)
