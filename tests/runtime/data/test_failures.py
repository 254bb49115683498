"""What goes wrong in a data set or a loader process reaches the script as it does from a stock loader."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import Any

import pytest
import torch
from tests.runtime.data.harness import Augmented, Session, bits, loader_of, resume

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Faulty(Augmented):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            raise KeyError("no such picture")
        return super().__getitem__(index)


def opened(make: Any, ests: list[int] | None = None) -> Session:
    session = Session(make, 2, ests or [0, 1])
    session.open(0)
    return session


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_the_data_set_is_raised_for_its_est_and_the_next_batch_follows(workers: int) -> None:
    make = lambda: loader_of(Faulty(12), batch_size=1, num_workers=workers)  # noqa: E731
    sound = opened(lambda: loader_of(Augmented(12), batch_size=1, num_workers=workers))
    session = opened(make)
    assert session.step()
    with pytest.raises(KeyError) as caught:
        session.step_of(0)
    assert "no such picture" in str(caught.value)
    if workers:
        assert "in DataLoader worker process 1" in str(caught.value)
        assert 'raise KeyError("no such picture")' in str(caught.value)
    cursors, rng = session.cursors(), dict(session.rng)
    assert session.step()
    after = resume(make, 2, [0, 1], cursors, rng)
    assert after.step()
    for est in (0, 1):
        assert after.batches[est][0][0] == session.batches[est][0][-1]
    sound.step()
    assert sound.batches[1][0][0] == session.batches[1][0][0]
    for one in (sound, session, after):
        one.feed.shutdown()


def test_an_exception_of_worker_init_fn_comes_with_the_first_batch() -> None:
    def init(worker: int) -> None:
        raise ValueError(f"no device for {worker}")

    session = opened(lambda: loader_of(Augmented(8), num_workers=2, worker_init_fn=init))
    with pytest.raises(ValueError, match="no device for 0"):
        session.step()
    session.feed.shutdown()


@pytest.mark.parametrize("how", [lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL)])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_batch_that_kills_its_process_each_time_is_an_error(how: Any, persistent: bool) -> None:
    class Deadly(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 2:
                how()
            return super().__getitem__(index)

    session = opened(lambda: loader_of(Deadly(20), batch_size=1, num_workers=2, persistent_workers=persistent))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\D* \d+ with exit code (3|-9)") as caught:
        deque(iter(session.step, False))
    assert "3 times in a row" in str(caught.value)
    assert len(session.batches[0][0]) <= 1  # index 2 is the second batch of EST 0; the first may die with its process
    # One that dies ahead of what is consumed may be started anew more often than one that is waited for.
    assert len(session.reports) >= 2
    session.feed.close()
    assert not multiprocessing.active_children()
    session.feed.shutdown()


def test_a_dead_loader_process_is_found_also_outside_the_main_thread() -> None:
    """There, no signal handler can help; the wait is cut short by the loader's timeout."""

    class Deadly(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            os._exit(0)  # no error to the signal handler

    session = opened(lambda: loader_of(Deadly(20), num_workers=1, timeout=20.0))
    caught: list[BaseException] = []

    def read() -> None:
        try:
            session.step()
        except RuntimeError as problem:
            caught.append(problem)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "with exit code 0) exited unexpectedly" in str(caught[0])
    assert all("ended with exit code 0; it was started anew" in text for text in session.reports)
    session.feed.shutdown()


def test_the_loaders_timeout_is_kept() -> None:
    class Stuck(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            threading.Event().wait(20)
            return torch.zeros(1)

    session = opened(lambda: loader_of(Stuck(8), num_workers=1, timeout=0.1))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.1 seconds"):
        session.step()
    for process in session.feed._source.pool._processes.members:  # type: ignore[union-attr]
        process.kill()  # else shutdown waits for it, as stock does
        process.join()
    session.feed.shutdown()


SCRIPT = """
import torch
from easyscale.runtime.data import Feed
loader = torch.utils.data.DataLoader(range(100), num_workers=2, persistent_workers=True)
feed = Feed(loader, world_size=2, ests=[0, 1], seed=0)
feed.open(0, 0)
feed.next(0)
print(*(process.pid for process in feed._source.pool._processes.members))
{end}
"""


@pytest.mark.parametrize("end", ["", "import os; os._exit(5)"])
def test_no_process_outlives_the_script(end: str) -> None:
    """Without a goodbye, loader processes notice within five seconds that they are orphans, as stock's do."""
    command = [sys.executable, "-c", SCRIPT.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # until the last one ends
    assert done.returncode == (5 if end else 0)
    assert not done.stderr
    for pid in map(int, done.stdout.split()) if not end else ():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned(workers: int) -> None:
    make = lambda: loader_of(Augmented(12), batch_size=2, num_workers=workers, pin_memory=True)  # noqa: E731
    plain = opened(lambda: loader_of(Augmented(12), batch_size=2, num_workers=workers))
    session = opened(make)
    batch = session.turn(0, lambda: session.feed.next(0))
    plain.step_of(0)
    assert batch.is_pinned()
    assert bits(batch) == plain.batches[0][0][0]
    session.feed.shutdown()
    plain.feed.shutdown()
