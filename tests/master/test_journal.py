"""The journal and what is folded from it."""

from pathlib import Path

from tests.master.simulation import Simulation

from easyscale.core.cluster import Slot
from easyscale.core.control import Beat, Hello, Joined, Status
from easyscale.core.messages import Ready, StepDone
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.book import Book, is_written
from easyscale.master.inputs import Begun, Ended, NotStarted, Overdue, Said, Save, Scale, Started, Stop, TooMany
from easyscale.master.journal import Entry, Heading, Journal, read
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.supervisor import Job


def heading() -> Heading:
    return Heading(
        job=Job(
            target=Target("train.py", ("--lr", "0.1"), module=True),
            schedule=Schedule(((0, Plan((2, 2))), (10, Plan((4,))))),
            template=WorkerSpec(ests=4, checkpoint_dir="/somewhere"),
        ),
        limits=Limits(workers=(1, 4), heartbeat=2.0),
        outputs=Outputs(report=Path("/a/report.json")),
        title="mine",
        first_step=3,
        slots=(Slot(id="a", kind="v100"), Slot(id="b", kind="v100")),
        kinds=("t4", "v100"),
    )


def entry(given: object, now: float = 1.5) -> Entry:
    return Entry(now=now, wall=1e9 + 1 / 3, given=given)  # type: ignore[arg-type]


ALL = [
    entry(given)
    for given in (
        Begun(again=True),
        Started(worker=0, pid=7, started="5@boot"),
        NotStarted(worker=1, why="no room"),
        Ended(worker=0, code=None),
        Scale(split=(1, 3)),
        Scale(workers=3),
        Scale(slots=(Slot(id="a", kind="v100", uuid="GPU-1"), Slot(id="b", kind="t4", node="n"))),
        Stop(number=15, now=True),
        Save(),
        TooMany(processes=70),
        Overdue(what="silent", workers=(1, 2)),
        Said(worker=2, body=Hello(worker=2, pid=9, ests=(1, 2))),
        Said(worker=2, body=Status(worker=2, epoch=1, forming=None, ests=(0,), step=3), seq=None),
        Said(worker=2, body=Joined(worker=2, epoch=4, step=3, seconds=0.1), seq=7),
        Said(
            worker=2,
            body=StepDone(worker=2, step=1, epoch=0, ests=[0], metrics={"loss": [0.1, None]}, samples=1, time=5.0),
            seq=8,
        ),
    )
]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.head(heading())
    journal.write(ALL[:5])
    journal.write(ALL[5:])
    journal.close()
    assert read(tmp_path / "journal.jsonl") == (heading(), ALL)
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_torn_last_line_is_left_out_and_the_next_one_stands_on_its_own(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.head(heading())
    journal.write(ALL)
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) - 150, len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal(path)
        again.write([entry(Save(), 9.0)])
        again.close()
        _, entries = read(path)
        assert entries[-1] == entry(Save(), 9.0)
        assert entries[:-1] in (ALL, ALL[:-1])


def test_beats_are_not_written() -> None:
    assert not is_written(entry(Said(worker=0, body=Beat(worker=0, epoch=0, step=0, waiting=False))))
    assert is_written(entry(Said(worker=0, body=Ready(worker=0, pid=1, step=0, seconds=1.0))))


def test_a_master_that_hears_the_journal_is_where_its_predecessor_was(tmp_path: Path) -> None:
    job = Simulation(6, 3).training()
    job.scale(2)
    job.kill(1)
    job.run(10.0)
    job.scale(4)
    job.run(1.0)
    entries = [Entry(now=now, wall=now, given=given) for now, given in job.inputs]
    journal = Journal(tmp_path / "journal.jsonl")
    journal.head(heading())
    journal.write(one for one in entries if is_written(one))
    journal.close()
    live, again = (Book(job.brain.facts.terms, 0.0) for _ in range(2))
    for one in entries:
        live.take(one)
    for one in read(tmp_path / "journal.jsonl")[1]:
        again.take(one)
    for hand in (*live.brain.facts.hands.values(), *again.brain.facts.hands.values()):
        hand.heard = hand.waiting = 0.0  # type: ignore[assignment] # only beats tell these
    again.brain.facts.now = live.brain.facts.now
    assert again.brain.facts == live.brain.facts
    assert (again.state.events, again.state.plans) == (live.state.events, live.state.plans)
    assert again.state.steps == live.state.steps > 0


def test_a_frame_that_was_heard_before_is_no_news() -> None:
    book = Book(Simulation(2, 1).brain.facts.terms, 0.0)
    said = Said(worker=0, body=Ready(worker=0, pid=1, step=0, seconds=1.0), seq=1)
    book.take(entry(Begun()))
    assert book.is_news(said)
    book.take(entry(said))
    assert not book.is_news(said)
