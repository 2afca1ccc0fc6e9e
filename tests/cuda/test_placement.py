"""Places of multiprocessors, and the seats that keep them."""

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.placement import placement, places
from minfer.cuda.tile.seats import COUNTER, MOST_SEATS, ORDER, make_seats
from tests.cuda.seat_kernel import seat_takers


def test_a_multiprocessor_has_the_place_of_the_block_that_it_ran():
    assert places([2, 0, 1]) == [1, 2, 0]


def test_what_was_no_order_is_by_number():
    assert places([0, 0, 2]) == [0, 1, 2]
    assert places(np.zeros(4, np.uint32)) == [0, 1, 2, 3]


def test_every_block_tells_where_it_is():
    where = np.full(3, 9, np.uint32)
    simulator.launch(placement(), placement().config.grid(3), where)
    assert where.tolist() == [0, 1, 2]  # a simulated block has a multiprocessor to itself


def test_seats_are_free_at_first():
    seats = make_seats([1, 2, 0])
    assert not seats[:ORDER].any() and seats[ORDER:].tolist() == [1, 2, 0]


def test_seats_that_are_no_order_are_refused():
    with pytest.raises(ValueError, match="0 to 2, each once"):
        make_seats([1, 2, 3])
    with pytest.raises(ValueError, match=f"257 seats: at most {MOST_SEATS}"):
        make_seats(range(257))


def test_each_place_is_taken_once_and_the_seats_are_clear_again():
    seats, taken = make_seats([3, 0, 2, 1]), np.zeros(4, np.uint32)
    for _ in range(2):
        simulator.launch(seat_takers(), (4, 1, 1), seats, taken)
        assert taken.tolist() == [3, 0, 2, 1] and not seats[:ORDER].any()


@pytest.mark.parametrize("left", [1, 0b1001])
def test_taken_seats_that_leave_too_few_are_a_fault(left):
    """The kernel declares no cleared elements: so launches outside checked mode are."""
    seats = make_seats([3, 0, 2, 1])
    seats[0] = left
    with pytest.raises(simulator.OutOfBounds, match="take_seats, block"):
        simulator.launch(seat_takers(), (4, 1, 1), seats, np.zeros(4, np.uint32))
    assert seats[COUNTER] < 4
