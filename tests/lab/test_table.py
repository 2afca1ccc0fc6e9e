"""Tables align, escape and format."""

from minfer.lab.table import Table

ROWS = [
    {"name": "a<b", "bytes": 4096, "share": 0.25, "ok": True},
    {"name": "c", "bytes": 1, "share": None, "ok": False},
]


def test_text():
    assert repr(Table(ROWS, formats={"share": ".1%"})) == (
        "name  bytes  share  ok\n----  -----  -----  ---\na<b   4,096  25.0%  yes\nc         1      -  no"
    )


def test_columns_choose_and_rename():
    table = Table(ROWS, columns={"bytes": "size (B)"})
    assert table.cells() == [["4,096"], ["1"]]
    assert repr(table).splitlines()[0] == "size (B)"


def test_html_is_escaped():
    html = Table(ROWS)._repr_html_()
    assert "a&lt;b" in html and "a<b" not in html
    assert html.count("<tr>") == 3


def test_no_rows():
    assert repr(Table([], columns={"x": "x"})) == "x\n-"
