"""What a process prints is kept until it is taken, and never without a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from easyscale.backends.ray.tape import Tape


def test_what_was_read_but_not_taken_is_read_again() -> None:
    tape = Tape()
    tape.write(b"one")
    assert tape.read(100) == (b"one", 3)
    assert tape.read(100) == (b"one", 3)
    tape.taken(3)
    tape.write(b"two")
    assert tape.read(2) == (b"tw", 5)
    tape.taken(5)
    assert tape.read(100) == (b"o", 6)


def test_a_flood_costs_the_oldest_bytes_and_says_how_many() -> None:
    tape = Tape(most=10)
    tape.write(b"0123456789abcde")
    data, place = tape.read(100)
    assert data == b"\n[easyscale: 5 bytes were printed here that nobody took in time]\n56789abcde"
    assert place == 15
    assert tape.read(100)[0] == b"56789abcde"


def test_places_that_nobody_reached_or_that_are_past_change_nothing() -> None:
    tape = Tape()
    tape.write(b"abc")
    for place in (-1, 0, 4, 1000):
        tape.taken(place)
    assert tape.read(100) == (b"abc", 3)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 16))
def test_a_reader_that_keeps_up_gets_all_in_order(writes: list[bytes], most: int) -> None:
    tape, heard = Tape(), b""
    for data in writes:
        tape.write(data)
        while tape.begin < tape.end:
            piece, place = tape.read(most)
            heard += piece
            tape.taken(place)
    assert heard == b"".join(writes)
