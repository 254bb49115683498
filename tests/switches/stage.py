"""A job whose script changes its own plan at chosen steps, and stock DDP beside it as the judge.

A `scene` is what the script does when it comes to a global step: the worker that holds EST 0 acts, once in a job, and
all workers of the plan then wait until what they act for has come (an order of the master, a cancelled wish). So a
switch happens at a known step, however slow the machine is: a wish in step k is in all hands before step k + 1 begins,
and the plan that it asks for holds from step k + 2 on.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cluster import Result, run_stock
from easyscale.core.plan import Schedule
from easyscale.core.requests import Accepted, AskStatus, JobStatus
from easyscale.core.spec import WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from elasticity import Fault, ForkedLauncher, Run, ask, run_with_master, spec_here, step_here, wait_until, wish
from workloads import CNN, Case, Pictures, by_hand, with_easyscale

PATIENCE = 60.0  # seconds; the machine may be busy
# How a worker ends that nobody needs and that has not spoken: it is told by SIGTERM, before or after it can listen.
TERMINATED = (-15, 128 + 15)

# Buffers, dropout, 4 ESTs with 4 batches an epoch: 8 global steps.
PICTURES = replace(CNN, data=lambda: Pictures(61))


@dataclass(frozen=True, kw_only=True)
class Scene:
    """`act` by the holder of EST 0, once; then every worker of the plan waits for `until`."""

    act: Callable[[], Any]
    until: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Play:
    run: Run
    codes: dict[int, int | None]  # exit codes by worker
    outcome: dict[str, Any]  # what the loop of `workloads` leaves, as the holder of EST 0 saw it in the end

    @property
    def splits(self) -> list[tuple[int, ...]]:
        return [plan.split for _, plan in self.run.state.plans]

    @property
    def plans(self) -> list[tuple[int, tuple[int, ...]]]:
        """The plans that were in force, by the step from which they were."""
        return [(step, plan.split) for step, plan in self.run.state.plans]


def play(
    case: Case,
    plan: Sequence[int] | Schedule,
    scenes: Mapping[int, Scene] | None = None,
    *,
    faults: Sequence[Fault] = (),
    surround: Callable[[WorkerSpec], None] | None = None,
    limits: Limits | None = None,
    outputs: Outputs | None = None,
    train: Callable[[], Any] | None = None,
    kind: type[ForkedLauncher] = ForkedLauncher,
    **spec: Any,
) -> Play:
    """Run the job to its end."""
    with tempfile.TemporaryDirectory() as notes:
        body = train or with_easyscale(case)
        if scenes:
            body = with_easyscale(replace(case, loss=_with_scenes(case.loss, scenes, Path(notes))))
        outcome = Path(notes) / "outcome"
        launcher = kind(_noted(body, outcome), faults, surround)
        run = run_with_master(body, plan, limits=limits, launcher=launcher, outputs=outputs, **spec)
        left = json.loads(outcome.read_text()) if outcome.exists() else {}
    return Play(
        run=run, codes={number: worker.code for number, worker in launcher.workers.items()}, outcome=left
    )  # fmt: skip


def _noted(train: Callable[[], Any], outcome: Path) -> Callable[[], None]:
    def body() -> None:
        left = train()
        if left is not None and holds_est_0():
            outcome.write_text(json.dumps(left))

    return body


def _with_scenes(loss: Callable[..., Any], scenes: Mapping[int, Scene], notes: Path) -> Callable[..., Any]:
    seen: set[int] = set()

    def called(output: Any, y: Any) -> Any:
        step = step_here()
        if torch.is_grad_enabled() and step in scenes and step not in seen:
            note = notes / str(step)
            if holds_est_0() and once(note):
                note.write_text(str(line().epoch))
                scenes[step].act()
            seen.add(step)
            wait_until(lambda: is_past(note) or scenes[step].until(), PATIENCE)
        return loss(output, y)

    return called


def judge(played: Play, stock: Result, *, losses: int | None = None) -> None:
    """The same bits and the same losses as stock DDP, nothing lost, a clean end."""
    run = played.run
    assert (run.exit_code, run.error) == (0, None), f"{run.error}\n{run.text}"
    assert run.fingerprint == stock["fingerprint"], run.text
    assert {str(step): row for step, row in run.state.losses.items()} == stock["losses"], run.text
    if played.outcome:  # optimizer, schedulers, averages, scores
        assert {name: stock[name] for name in played.outcome} == played.outcome
    assert run.state.lost_steps == 0
    if losses is not None:
        assert len(run.happened("worker-lost")) == losses, run.text


_known: dict[tuple[str, int], Result] = {}


def stock(name: str, case: Case, ranks: int) -> Result:
    """Stock DDP's result, run once for each name."""
    if (name, ranks) not in _known:
        _known[name, ranks] = run_stock(by_hand(case), ranks)
    return _known[name, ranks]


# ---------------------------------------------------------------------------------------- inside a worker


def wished(**scale: Any) -> Scene:
    """A wish for another plan, and the order for it."""

    def act() -> None:
        reply = wish(**scale)
        assert isinstance(reply, Accepted), reply

    return Scene(act=act, until=order_in_hand)


def order_in_hand() -> bool:
    return line().switch_in_hand() > 0


def told(what: str) -> Callable[[], bool]:
    """The master has told of such an event."""
    return lambda: any(event.what == what for event in status(50).events)


def status(events: int = 0) -> JobStatus:
    reply = ask(AskStatus(events=events))
    assert isinstance(reply, JobStatus)
    return reply


def line() -> Any:
    from easyscale.runtime.control import line_of

    return line_of(spec_here())


def holds_est_0() -> bool:
    from easyscale.runtime import api

    engine = api.current_engine()
    return engine is not None and 0 in engine.ests


def is_past(note: Path) -> bool:
    """What was wished has come: a window of batches may go on, in the same step, on the next plan."""
    text = note.read_text() if note.exists() else ""
    return bool(text) and line().epoch > int(text)


def once(note: Path) -> bool:
    """True for the first process of a job that asks: a step may be run again after a loss."""
    try:
        os.close(os.open(note, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
