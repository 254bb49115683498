from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from easyscale.master.output import Lines


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b""])).map(b"".join), st.data())
def test_lines_do_not_depend_on_the_pieces_in_which_bytes_come(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.lists(st.integers(0, len(data))))
    for returns in (False, True):
        whole, pieces = Lines(1000, returns=returns), Lines(1000, returns=returns)
        expected = [*whole.feed(data), whole.rest()]
        got = [line for piece in cut(data, at) for line in pieces.feed(piece)]
        assert [*got, pieces.rest()] == expected


def test_a_progress_bar_becomes_lines_and_empty_lines_stay() -> None:
    lines = Lines(1000, returns=True)
    assert lines.feed(b"\r10%\r20%\r\n\nend") == [b"10%", b"20%", b""]
    assert lines.rest() == b"end"


def test_memory_stays_bounded_where_no_line_ends() -> None:
    lines = Lines(10)
    assert lines.feed(b"x" * 25) == [b"x" * 25]
    assert lines.rest() == b""
