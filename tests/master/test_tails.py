from pathlib import Path

from easyscale.master.tails import LogLine, Tails


def test_lines_come_whole_and_an_unfinished_one_at_the_end(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("one\ntw")
    err.write_text("")
    tails = Tails(tmp_path / "tails.json")
    tails.follow(3, out, err)
    assert tails.take() == [LogLine(3, False, "one")]
    with out.open("a") as file:
        file.write("o\nthree")
    err.write_text("bad\n")
    assert tails.take() == [LogLine(3, False, "two"), LogLine(3, True, "bad")]
    assert tails.end(3) == [LogLine(3, False, "three")]
    tails.close()


def test_another_reader_goes_on_where_the_first_was(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("one\n")
    err.write_text("")
    first = Tails(tmp_path / "tails.json")
    first.follow(0, out, err)
    assert len(first.take()) == 1
    with out.open("a") as file:
        file.write("two\n")
    second = Tails(tmp_path / "tails.json")
    second.follow(0, out, err, from_end=True)
    assert second.take() == [LogLine(0, False, "two")]
    second.close()
    first.close()


def test_without_a_note_what_is_there_counts_as_shown(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("one\n")
    err.write_text("")
    tails = Tails(tmp_path / "tails.json")
    tails.follow(0, out, err, from_end=True)
    tails.follow(1, tmp_path / "no", tmp_path / "such")
    assert tails.take() == []
    tails.close()
