"""Runs a job with faults under the real master, and compares it with stock DDP: final sha256 and every loss.

That a fault really struck is not taken for granted: each leaves a mark in memory that the test shares with its workers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import easyscale.runtime.session  # noqa: F401  once here, not once in each forked worker
from cluster import run_stock
from easyscale.core.spec import WorkerSpec
from easyscale.master.limits import Limits
from elasticity import ForkedLauncher, Run, run_with_master, spec_here, step_here
from faults.cases import case_of
from workloads import by_hand, with_easyscale

Split = tuple[int, ...]
Action = Callable[[], Any]
# What each worker that comes to its end must have as every rank of stock DDP has it.
OF_EVERY_WORKER = ("parameters", "optimizer", "scheduler", "scaler", "rates", "scale")
OF_RANK_0 = (*OF_EVERY_WORKER, "model", "average", "scores")


@cache
def stock(name: str, ests: int) -> dict[str, Any]:
    """Hand-written DDP with N processes: the judge."""
    return run_stock(by_hand(case_of(name, ests)), ests)


# ---------------------------------------------------------------------------------------- faults


class Marks:
    """Counters that workers raise and the test reads, whatever becomes of the workers."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 64)

    def raise_(self, which: int = 0) -> None:
        self._memory[which] += 1

    def __getitem__(self, which: int) -> int:
        return self._memory[which]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)  # a stop reaches the thread that asks for it a moment later


@dataclass(frozen=True, kw_only=True)
class Strike:
    """`action` in `worker`, when it comes to `place` for the `nth` time, at `step` (None: at any).

    Unlike `elasticity.Fault` it may look at the call's arguments, and says whether it struck.
    """

    worker: int
    place: str
    step: int | None = None
    nth: int = 1
    after: bool = False
    action: Action = kill
    when: Callable[..., bool] = lambda *_args, **_kwargs: True  # given the call's arguments
    marks: Marks = field(default_factory=Marks)

    def plant(self) -> None:
        seen = 0

        def strikes(*args: Any, **kwargs: Any) -> bool:
            nonlocal seen
            hit = (self.step is None or step_here() == self.step) and self.when(*args, **kwargs)
            seen += hit
            return hit and seen == self.nth

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                now = strikes(*args, **kwargs)
                if now and not self.after:
                    self._act()
                result = original(*args, **kwargs)
                if now and self.after:
                    self._act()
                return result

            return wrapped

        replace_at(self.place, around)

    def _act(self) -> None:
        self.marks.raise_()
        self.action()

    @property
    def happened(self) -> bool:
        return self.marks[0] > 0


def replace_at(place: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """In this process: put another function at `module:Class.method` or `module:function`."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, name, around(getattr(owner, name)))


# ---------------------------------------------------------------------------------------- runs


@dataclass(frozen=True, kw_only=True)
class Outcome:
    run: Run
    workers: dict[int, dict[str, Any]]  # what each worker that ended well had in the end


def run(
    name: str,
    split: Sequence[int],
    strikes: Sequence[Strike] = (),
    *,
    surround: Callable[[WorkerSpec], None] | None = None,
    train: Callable[[], Any] | None = None,
    limits: Limits | None = None,
    **spec: Any,
) -> Outcome:
    """`surround` runs in each worker before all else; `train` instead of the loop of the case."""
    with tempfile.TemporaryDirectory() as folder:

        def tell() -> None:
            result = (train or with_easyscale(case_of(name, sum(split))))()
            Path(folder, f"{spec_here().worker}.json").write_text(json.dumps(result))

        def prepare(worker: WorkerSpec) -> None:
            if surround is not None:
                surround(worker)
            for strike in strikes:
                if strike.worker == worker.worker:
                    strike.plant()

        done = run_with_master(
            tell, split, launcher=ForkedLauncher(tell, surround=prepare), limits=limits, **{"timeout": 30.0, **spec}
        )
        workers = {int(path.stem): json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    return Outcome(run=done, workers=workers)


def differences(outcome: Outcome, expected: dict[str, Any]) -> list[str]:
    """What is not as in stock DDP; nothing, if the promise holds."""
    state = outcome.run.state
    found = [] if state.fingerprint == expected["fingerprint"] else ["sha256"]
    losses = {int(step): row for step, row in expected["losses"].items()}
    if state.losses != losses:
        wrong = [step for step in sorted({*losses, *state.losses}) if losses.get(step) != state.losses.get(step)]
        found.append(f"losses of steps {wrong}: {[state.losses.get(step) for step in wrong[:3]]}")
    places = state.places or {}
    holder = min(places, key=lambda worker: places[worker].start, default=None)
    for worker, result in outcome.workers.items():
        names = OF_RANK_0 if worker == holder else OF_EVERY_WORKER
        found += [f"{name} of worker {worker}" for name in names if result.get(name) != expected.get(name)]
    return found


def check(
    outcome: Outcome, expected: dict[str, Any], strikes: Sequence[Strike] = (), *, lost: int | None = None
) -> None:
    """All that each test asks: the bits, the faults, no lost step, the exit code, and `lost` workers told of."""
    done = outcome.run
    shown = f"{done.error}\n{done.text}"
    assert done.exit_code == 0, shown
    assert done.error is None, shown
    found = differences(outcome, expected)
    assert not found, f"{found}\n{shown}"
    assert done.state.lost_steps == 0, shown
    assert done.state.steps == len(expected["losses"]), shown
    missing = [strike for strike in strikes if not strike.happened]
    assert not missing, f"{missing} did not strike\n{shown}"
    if lost is not None:
        assert len(done.happened("worker-lost")) == lost, shown


def survive(name: str, split: Split, strikes: Sequence[Strike], *, lost: int | None = 1, **options: Any) -> Outcome:
    """Run with these faults; the result is that of stock DDP."""
    outcome = run(name, split, strikes, **options)
    check(outcome, stock(name, sum(split)), strikes, lost=lost)
    return outcome


@contextlib.contextmanager
def own_runtime_dir() -> Iterator[Path]:
    """A place for job folders, for tests that start masters of their own."""
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o700)
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = home
        try:
            yield Path(home)
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
