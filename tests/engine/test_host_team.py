"""The thread team: order of steps, sharing of parts, several callers, settings."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from minfer.engine.errors import InputError
from minfer.engine.host.compile import kernel
from minfer.engine.host.simd import load_i64, store_i64
from minfer.engine.host.team import Program, Team, default_threads, share, team
from minfer.engine.host.weights import address


@kernel
def add_neighbours(part, parts, out, x, count):
    """out[i] = x[i] + x[(i + 1) % count]."""
    begin, end = share(count, part, parts)
    for i in range(begin, end):
        store_i64(out + 8 * i, load_i64(x + 8 * i) + load_i64(x + 8 * ((i + 1) % count)))


def doubling_program(steps: int, parts: int) -> tuple[Program, list[np.ndarray]]:
    """Every step needs all of the step before it, so a step that starts too early gives a wrong sum."""
    a, b = np.ones(64, np.int64), np.full(64, -1, np.int64)
    program = Program()
    for i in range(steps):
        source, target = (a, b) if i % 2 == 0 else (b, a)
        program.add(add_neighbours, address(target), address(source), 64, parts=parts)
    return program, [a, b]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_steps_wait_for_each_other(threads, parts):
    program, (a, _) = doubling_program(40, parts)
    team(threads).run(program.table())
    assert (a == 2**40).all()


def test_a_table_can_be_run_again():
    program, (a, _) = doubling_program(4, 3)
    table = program.table()
    for _ in range(5):
        team(2).run(table)
    assert (a == 2**20).all()


def test_steps_that_do_not_wait_are_waited_for_later():
    x, halves = np.arange(64), [np.zeros(64, np.int64) for _ in range(3)]
    total = np.zeros(64, np.int64)
    program = Program()
    for i, out in enumerate(halves):
        program.add(add_neighbours, address(out), address(x), 64, parts=4, wait=i == 2)
    program.add(add_neighbours, address(total), address(halves[0]), 64, parts=4)
    team(3).run(program.table())
    once = x + np.roll(x, -1)
    for out in halves:
        np.testing.assert_array_equal(out, once)
    np.testing.assert_array_equal(total, once + np.roll(once, -1))


def test_callers_in_many_threads():
    shared = Team(3)
    programs = [doubling_program(30, 4) for _ in range(6)]
    callers = [threading.Thread(target=shared.run, args=(program.table(),)) for program, _ in programs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert all((arrays[0] == 2**30).all() for _, arrays in programs)


def test_an_empty_program_is_nothing():
    team(2).run(Program().table())


def test_a_wrong_number_of_arguments_is_refused():
    with pytest.raises(TypeError, match="add_neighbours takes 3 arguments, 1 given"):
        Program().add(add_neighbours, 0)


def test_threads_from_the_environment(monkeypatch):
    monkeypatch.setenv("MINFER_THREADS", "3")
    assert default_threads() == 3
    for wrong in ("0", "-1", "many", "1025", ""):
        monkeypatch.setenv("MINFER_THREADS", wrong)
        with pytest.raises(InputError, match="MINFER_THREADS"):
            default_threads()
    monkeypatch.delenv("MINFER_THREADS")
    assert default_threads() >= 1
