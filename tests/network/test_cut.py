"""A network that loses packets: who is cut off is found by its silence, fenced when it is back, and the bits stay.

Workers run on test hosts of their own (network namespaces), three or four to a job. The launcher cannot kill those who
are cut off, as if their machines were out of reach: they must find their end by themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.runtime.control import FENCED
from elasticity import Fault, ForkedLauncher, run_with_master, wait_until, wish
from network.hosts import MASTER, Hosts
from switches.stage import PATIENCE, PICTURES, Play, judge, order_in_hand, stock
from workloads import with_easyscale

ESTS = 4
HEARTBEAT = 2.0
BACKWARD = "easyscale.runtime.reduce:Reducer._backward_ended"
SESSION = "easyscale.runtime.session:EstSession."
REFERENCE = ("pictures", PICTURES, ESTS)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(4) as built:
        yield built


class Apart(ForkedLauncher):
    """Workers on their own hosts; `out_of_reach` ones cannot be killed from here."""

    def __init__(self, hosts: Hosts, faults: Sequence[Fault], notes: Path, out_of_reach: set[int]) -> None:
        super().__init__(with_easyscale(PICTURES), faults, self._arrive)
        self._hosts, self._notes, self._out_of_reach = hosts, notes, out_of_reach

    def _arrive(self, spec: WorkerSpec) -> None:
        self._hosts.move_in(spec)
        (self._notes / f"pid-{spec.worker}").write_text(str(os.getpid()))
        if spec.worker in self._out_of_reach:
            _obey_late()

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> Any:
        worker = super().start_apart(spec, target, out, err)
        if spec.worker in self._out_of_reach:
            worker.kill = lambda: None  # type: ignore[method-assign]
            worker._kill_group = lambda: None  # type: ignore[attr-defined, method-assign]
        return worker


def _obey_late() -> None:
    """What this worker has said before it hears of its fence gets the time to arrive."""
    from easyscale.core.control import Fence, unpack
    from easyscale.runtime.control import Line

    original = Line._take

    def take(self: Line, line: bytes) -> None:
        frame = unpack(line, self._control.token)
        if frame is not None and isinstance(frame.body, Fence):
            time.sleep(1.0)
        original(self, line)

    Line._take = take  # type: ignore[method-assign]


def run(
    hosts: Hosts,
    split: tuple[int, ...],
    faults: Sequence[Fault],
    notes: Path,
    *,
    out_of_reach: set[int] | None = None,
    orphan: float = 60.0,
    **spec: Any,
) -> Play:
    launcher = Apart(hosts, faults, notes, out_of_reach or set())
    limits = Limits(
        heartbeat=HEARTBEAT, listen=hosts.address(MASTER), orphan=orphan, grace=2.0, meeting="master"
    )  # fmt: skip
    outputs = Outputs(report=notes / "report.json")
    done = run_with_master(
        with_easyscale(PICTURES), split, launcher=launcher, limits=limits, outputs=outputs, **spec
    )  # fmt: skip
    return Play(run=done, codes={n: worker.code for n, worker in launcher.workers.items()}, outcome={})


def has_ended(notes: Path, worker: int) -> bool:
    try:
        os.kill(int((notes / f"pid-{worker}").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def found_in_time(played: Play, victims: set[int]) -> None:
    """By its silence, and the others went on: ten times the limit is what a busy machine may need."""
    lost = played.run.happened("worker-lost")
    assert {int(text.split()[1]) for text in lost} == victims, played.run.text
    assert all(f"did not answer for {HEARTBEAT:g} s" in text for text in lost), lost
    assert sum(recovery["seconds"] for recovery in played.run.state.recoveries) < 10 * HEARTBEAT * len(victims)


def test_hosts_train_together(hosts: Hosts, tmp_path: Path) -> None:
    """Without a cut: workers on hosts of their own, and one that joins."""
    played = run(hosts, (1, 1, 1, 1), [], tmp_path)
    judge(played, stock(*REFERENCE), losses=0)
    assert set(played.codes.values()) == {0}


DIRECTIONS: dict[str, Callable[[Hosts, list[int], list[int]], None]] = {
    "both": Hosts.part,
    "nothing from it": Hosts.cut,
    "nothing to it": lambda hosts, it, rest: hosts.cut(rest, it),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_is_cut_off(hosts: Hosts, tmp_path: Path, direction: str, victim: int) -> None:
    """In the middle of a step; when it is back, it is fenced before it has said anything that counts."""
    rest = [MASTER, *(host for host in range(3) if host != victim)]

    def cut() -> None:
        DIRECTIONS[direction](hosts, [victim], rest)

    def heal_and_see() -> None:
        hosts_heal(hosts, direction, [victim], rest)
        wait_until(lambda: has_ended(tmp_path, victim), PATIENCE)

    survivor = 1 if victim == 0 else 0
    faults = [
        Fault(worker=victim, step=2, place=BACKWARD, action=cut),
        Fault(worker=survivor, step=5, place=BACKWARD, action=heal_and_see),
    ]
    played = run(hosts, (2, 1, 1), faults, tmp_path, out_of_reach={victim})
    judge(played, stock(*REFERENCE), losses=1)
    found_in_time(played, {victim})
    assert played.codes == {worker: FENCED if worker == victim else 0 for worker in range(3)}


def hosts_heal(hosts: Hosts, direction: str, it: list[int], rest: list[int]) -> None:
    if direction == "both":
        hosts.join(it, rest)
    elif direction == "nothing from it":
        hosts.heal(it, rest)
    else:
        hosts.heal(rest, it)


@pytest.mark.slow
def test_a_worker_that_stays_cut_off_leaves_by_itself(hosts: Hosts, tmp_path: Path) -> None:
    faults = [Fault(worker=2, step=2, place=BACKWARD, action=lambda: hosts.part([2], [MASTER, 0, 1]))]
    played = run(hosts, (2, 1, 1), faults, tmp_path, out_of_reach={2}, orphan=1.0)
    judge(played, stock(*REFERENCE), losses=1)
    found_in_time(played, {2})
    assert played.codes == {0: 0, 1: 0, 2: 0}


@pytest.mark.slow
def test_a_newcomer_that_is_cut_off_while_the_plan_changes(hosts: Hosts, tmp_path: Path) -> None:
    """The state is on its way to it."""

    def ask_and_wait() -> None:
        wish(workers=3)
        wait_until(order_in_hand, PATIENCE)

    faults = [
        Fault(worker=0, step=1, place=BACKWARD, action=ask_and_wait),
        Fault(worker=1, step=1, place=BACKWARD, action=lambda: wait_until(order_in_hand, PATIENCE)),
        Fault(
            worker=2, step=-1, place="easyscale.runtime.membership:Membership.transfer", after=True,
            action=lambda: hosts.part([2], [MASTER, 0, 1]),
        ),
    ]  # fmt: skip
    played = run(hosts, (2, 2), faults, tmp_path, out_of_reach={2}, orphan=1.0)
    judge(played, stock(*REFERENCE), losses=1)
    assert len(played.run.happened("switch-cancelled")) == 1
    assert played.codes[0] == played.codes[1] == 0


@pytest.mark.parametrize("away", [{2, 3}, {0, 1}], ids=["with EST 0", "without EST 0"])
def test_of_two_halves_only_the_masters_goes_on(hosts: Hosts, tmp_path: Path, away: set[int]) -> None:
    """The other half has no plan of its own and writes no checkpoint; when the network heals, it goes."""
    here = {0, 1, 2, 3} - away
    folder = tmp_path / "checkpoints"
    notes = tmp_path / "notes"
    notes.mkdir()

    def heal_and_see() -> None:
        hosts.join(away, [MASTER, *here])
        for worker in away:
            wait_until(lambda worker=worker: has_ended(notes, worker), PATIENCE)  # type: ignore[misc]

    faults = [
        Fault(worker=min(away), step=2, place=BACKWARD, action=lambda: hosts.part(away, [MASTER, *here])),
        Fault(worker=min(here), step=6, place=BACKWARD, action=heal_and_see),
    ]
    writers = notes / "writers"

    def note_writer(spec: WorkerSpec) -> None:
        from easyscale.runtime.checkpoint import store

        original = store.write_folder

        def write_folder(path: Path, snapshot: Any) -> int:
            with writers.open("a") as file:
                file.write(f"{spec.worker} {snapshot.step}\n")
            return original(path, snapshot)

        store.write_folder = write_folder  # type: ignore[assignment]

    arrive = Apart._arrive

    class Noted(Apart):
        def _arrive(self, spec: WorkerSpec) -> None:
            arrive(self, spec)
            note_writer(spec)

    launcher = Noted(hosts, faults, notes, away)
    limits = Limits(heartbeat=HEARTBEAT, listen=hosts.address(MASTER), grace=2.0)
    done = run_with_master(
        with_easyscale(PICTURES), (1, 1, 1, 1), launcher=launcher, limits=limits,
        outputs=Outputs(report=notes / "report.json"), checkpoint_dir=str(folder), checkpoint_every=1,
        checkpoint_keep=20,
    )  # fmt: skip
    played = Play(run=done, codes={n: worker.code for n, worker in launcher.workers.items()}, outcome={})
    judge(played, stock(*REFERENCE), losses=2)
    found_in_time(played, away)
    assert played.codes == {worker: FENCED if worker in away else 0 for worker in range(4)}
    lost_at = 2  # steps that were complete when the network was cut
    written = [line.split() for line in writers.read_text().splitlines()]
    assert max(int(step) for worker, step in written if int(worker) in here) == 8
    assert all(int(step) <= lost_at for worker, step in written if int(worker) in away), written


@pytest.mark.slow
def test_workers_that_reach_the_master_but_not_each_other(hosts: Hosts, tmp_path: Path) -> None:
    """Nobody is to blame: they try again a few times, then the job ends and says what to look at."""
    faults = [Fault(worker=1, step=2, place=BACKWARD, action=lambda: hosts.part([0], [1]))]
    played = run(hosts, (2, 2), faults, tmp_path, timeout=2.0)
    assert played.run.exit_code == 1
    assert "lose each other again and again" in (played.run.error or "")
    assert "check the network between them" in (played.run.error or "")


def test_a_short_cut_between_two_workers_is_mended(hosts: Hosts, tmp_path: Path) -> None:
    """Shorter than the limit of a silent peer: packets come again, and nobody has noticed."""

    def blink() -> None:
        hosts.part([0], [1])
        time.sleep(0.5)
        hosts.join([0], [1])

    played = run(hosts, (2, 2), [Fault(worker=1, step=2, place=BACKWARD, action=blink)], tmp_path)
    judge(played, stock(*REFERENCE), losses=0)
    assert played.plans == [(0, (2, 2))]
