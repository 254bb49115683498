import io
import os

from easyscale.core.plan import Plan
from easyscale.master.progress import Progress, Screen
from easyscale.master.state import StepRecord


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(step: int, time: float, loss: float | None = 0.25, samples: int = 8) -> StepRecord:
    metrics: dict[str, list[float | None]] = {"loss": [loss, loss]}
    return StepRecord(step=step, epoch=3, time=time, plan=Plan((1, 1)), metrics=metrics, samples=samples)


def progress(*records: StepRecord, title: str = "") -> Progress:
    facts = Progress(title)
    facts.begin(Plan((1, 1)))
    for entry in records:
        facts.step(entry)
    return facts


def test_the_line_tells_step_epoch_loss_rate_and_plan() -> None:
    facts = progress(record(0, 10.0), record(1, 10.5), record(2, 11.0), title="mine")
    assert facts.text() == "mine · step 3 · epoch 3 · loss 0.2500 · 16 samples/s · 2 workers (1+1)"


def test_what_is_not_known_is_left_out() -> None:
    assert progress().text() == "starting · 2 workers (1+1)"
    assert progress(record(0, 1.0, None), record(1, 2.0, None, 0)).text() == "step 2 · epoch 3 · 2 workers (1+1)"


def test_the_rate_is_that_of_the_plan_in_force() -> None:
    facts = progress(record(0, 0.0), record(1, 1.0))
    facts.begin(Plan((2,)))
    assert facts.rate() is None
    facts.step(record(2, 60.0))
    facts.step(record(3, 64.0))
    assert facts.rate() == 2.0


def test_lines_keep_their_stream_and_wear_their_label() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.worker_line("worker 0 · EST 0", "to out", error=False)
    screen.worker_line("rank 1", "to err", error=True)
    assert out.getvalue() == "[worker 0 · EST 0] to out\n"
    assert err.getvalue() == "[rank 1] to err\n"


def test_a_terminal_gets_dim_labels_unless_colour_is_unwanted() -> None:
    for color, expected in ((True, "\x1b[2m[rank 1]\x1b[0m x\n"), (False, "[rank 1] x\n")):
        out = Terminal()
        Screen(out, io.StringIO(), color=color).worker_line("rank 1", "x", error=False)
        assert out.getvalue() == expected


def test_a_terminal_has_one_progress_line_below_all_others() -> None:
    err = Terminal()
    screen, facts = Screen(io.StringIO(), err, color=False), progress()
    screen.show(facts, 100.0)
    screen.worker_line("rank 0", "hello", error=True)
    screen.close()
    erase, line = "\r\x1b[2K", facts.text()
    assert err.getvalue() == f"{erase}{line}{erase}[rank 0] hello\n{line}{erase}"


def test_a_file_gets_a_progress_line_every_ten_seconds_only() -> None:
    err = io.StringIO()
    screen, facts = Screen(io.StringIO(), err), progress()
    for tenth in range(1000, 1250):
        screen.show(facts, tenth / 10)
    assert err.getvalue() == (facts.text() + "\n") * 2


def test_quiet_leaves_only_the_workers_lines_and_errors() -> None:
    out, err = io.StringIO(), Terminal()
    screen = Screen(out, err, quiet=True)
    screen.show(progress(), 100.0)
    screen.notice("a notice")
    screen.worker_line("rank 0", "hello", error=False)
    screen.error("it broke")
    assert (out.getvalue(), err.getvalue()) == ("[rank 0] hello\n", "it broke\n")


def test_a_stream_that_cannot_say_a_character_says_another() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Screen(out, io.StringIO()).worker_line("worker 0 · EST 0", "→", error=False)
    assert raw.getvalue() == b"[worker 0 ? EST 0] ?\n"


def test_a_reader_that_leaves_does_not_end_the_job() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        screen = Screen(out, io.StringIO())
        for _ in range(2):
            screen.worker_line("rank 0", "hello", error=False)
