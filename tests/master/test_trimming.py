"""Logs with a limit: the newest part stays, places stay what they were, and no reader gets stuck."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from easyscale.master.tails import Tails
from easyscale.master.trimming import dropped, end_of, read_part, trim


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, last))  # 12 bytes each


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not trim(log, 100)
    log.write_bytes(lines(0, 8))
    assert not trim(log, 100)
    assert (log.read_bytes(), dropped(log), end_of(log)) == (lines(0, 8), 0, 96)


def test_of_a_long_one_the_newest_whole_lines_stay_and_places_still_count_from_the_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(lines(0, 1000))
    assert trim(log, 1200)
    assert log.read_bytes() == lines(951, 1000)
    assert (dropped(log), end_of(log)) == (951 * 12, 12000)
    part = read_part(log, 0, 24)
    assert (part.data, part.start, part.next) == (lines(951, 953), 951 * 12, 953 * 12)
    part = read_part(log, 999 * 12, 100)
    assert (part.data, part.start) == (lines(999, 1000), 999 * 12)
    assert read_part(log, 12000, 100).data == b""
    with log.open("ab") as file:
        file.write(lines(1000, 1200))
    assert trim(log, 1200)
    assert read_part(log, 12000, 12).data == lines(1151, 1152), "more of it is gone"
    assert end_of(log) == 14400


def test_a_line_without_an_end_is_cut_anywhere(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 5000)
    assert trim(log, 1000)
    assert log.read_bytes() == b"x" * 500


def test_who_appends_meanwhile_is_never_mixed_up(tmp_path: Path) -> None:
    """Some lines are lost; those that are there are whole and in order."""
    log, over = tmp_path / "log", threading.Event()
    stream = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def write() -> None:
        for number in range(30000):
            os.write(stream, b"line %06d\n" % number)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    cuts = 0
    while not over.is_set():
        cuts += trim(log, 6000)
    writer.join()
    os.close(stream)
    found = log.read_bytes().splitlines()
    assert cuts > 0
    assert found == sorted(found)
    assert {len(line) for line in found} == {11}
    assert found[-1] == b"line 029999"


def test_a_tail_goes_on_behind_what_was_dropped_and_shows_no_more_than_the_limit(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(lines(0, 10))
    err.write_bytes(b"")
    tails = Tails(tmp_path / "tails.json", 1200)
    tails.follow(0, out, err)
    assert len(tails.take()) == 10
    with out.open("ab") as file:
        file.write(lines(10, 5000))
    shown = tails.take()
    assert 100 < len(shown) < 5500
    assert "newest part is in its log only" in shown[-1].text
    assert out.stat().st_size <= 1200
    with out.open("ab") as file:
        file.write(lines(5000, 9000))
    assert tails.take() == []
    assert out.read_bytes().endswith(lines(8960, 9000))
    assert out.stat().st_size <= 1200
    tails.close()


def test_the_next_master_goes_on_where_the_last_one_was_although_the_log_was_cut(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(lines(0, 90))
    err.write_bytes(b"")
    first = Tails(tmp_path / "tails.json", 1200)
    first.follow(0, out, err)
    assert len(first.take()) == 90
    with out.open("ab") as file:
        file.write(lines(90, 120))
    trim(out, 1200)
    second = Tails(tmp_path / "tails.json", 1200)
    second.follow(0, out, err, from_end=True)
    assert [line.text for line in second.take()] == lines(90, 120).decode().splitlines()
    first.close()
    second.close()


def test_a_flood_does_not_keep_a_reader_from_returning(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(lines(0, 200_000))
    err.write_bytes(b"")
    tails = Tails(tmp_path / "tails.json")
    tails.follow(0, out, err)
    rounds = [len(tails.take()) for _ in range(4)]
    assert sum(rounds) == 200_000
    assert max(rounds) < 100_000
    tails.close()
