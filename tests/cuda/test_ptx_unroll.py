"""Literal unrolling keeps the meaning, the lines and the closure of a function."""

import dis
import sys

import pytest

from minfer.cuda.unroll import unroll, unrolled

WIDTH = 3


def make(rows):
    def work(values):
        total = 0
        for i in unroll(rows):
            for j in unroll(1, WIDTH):
                if (i + j) % 2 == 0:
                    total += values[i] * 10
                elif i == 1:
                    total += j
                if values[j] > 100:
                    total -= 1
            while total > 1000:
                total -= 1000
                continue
        return total

    return work


def test_same_result_as_the_rolled_function():
    for values in ([1, 2, 3, 4], [500, 200, 7, 300]):
        assert unrolled(make(4))(values) == make(4)(values)


def test_one_definition_serves_all_its_constants():
    values = [1, 2, 3, 4]
    first = [unrolled(make(rows))(values) for rows in (4, 2, 3, 1)]
    assert first == [make(rows)(values) for rows in (4, 2, 3, 1)]
    assert first == [unrolled(make(rows))(values) for rows in (4, 2, 3, 1)]


def test_no_loop_and_no_constant_test_remains():
    rolled, written_out = make(2), unrolled(make(2))
    jumps = [i for i in dis.get_instructions(written_out) if i.opname == "FOR_ITER"]
    assert not jumps
    assert any(i.opname == "FOR_ITER" for i in dis.get_instructions(rolled))
    names = {i.argval for i in dis.get_instructions(written_out)}
    assert "i" not in names and "j" not in names


def test_closure_variables_stay_closure_variables():
    scale = 5

    def work(x):
        for i in unroll(2):
            x = x * scale + i
        return x

    function = unrolled(work)
    assert function.__code__.co_freevars == ("scale",)
    assert function(1) == 26
    assert function.__qualname__ == work.__qualname__


def test_branches_on_constants_are_folded_everywhere():
    direct = False
    if direct:
        missing = 0

    def work(x):
        if direct:
            return missing + x
        if WIDTH == 3 and not direct:
            return x
        return -x

    function = unrolled(work)
    assert function(7) == 7
    # the variable that only the dropped branch names need not exist
    assert "missing" not in function.__code__.co_freevars + function.__code__.co_names


def test_lines_are_those_of_the_source():
    def work():
        for i in unroll(2):
            raise KeyError(i)  # this line

    function = unrolled(work)
    with pytest.raises(KeyError):
        try:
            function()
        except KeyError:
            frame = sys.exc_info()[2].tb_next.tb_frame
            line = sys.exc_info()[2].tb_next.tb_lineno
            assert frame.f_code.co_filename == __file__
            assert line == work.__code__.co_firstlineno + 2
            raise


def assigns(n):
    for i in unroll(2):
        i = i + n
    return i


def breaks(n):
    for i in unroll(2):
        if n:
            break
        n = i
    return n


def varies(n):
    for i in unroll(n):
        n = i
    return n


@pytest.mark.parametrize(
    ("function", "message"), [(assigns, "assigned"), (breaks, "break and continue"), (varies, "not constant")]
)
def test_broken_contract_names_the_line(function, message):
    with pytest.raises(ValueError, match=rf"test_ptx_unroll\.py:\d+: .*{message}"):
        unrolled(function)
