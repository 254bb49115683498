"""A script that knows nothing of EasyScale, watched (`easyscale verify --twice`).

`python -m easyscale.runtime.observe.plain [--module] TARGET [ARGS...]`. A step is one `step()` of one of its
optimizers; all else is as if the script had been started with python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from easyscale.core.messages import Done, Failed, Ready, StepDone, Witness
from easyscale.core.observe import Observation
from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec
from easyscale.numerics.digest import combined, digest, plain, read
from easyscale.numerics.record import flags, surroundings
from easyscale.runtime.failures import describe
from easyscale.runtime.journal import Journal
from easyscale.runtime.observe.evidence import apply_treatments, take_evidence
from easyscale.runtime.observe.observer import optimizer_tensors, random_states
from easyscale.runtime.observe.plant import planted
from easyscale.runtime.observe.trace import Trace, path_of
from easyscale.runtime.stops import Leaving
from easyscale.runtime.worker import run_target


class PlainWatch:
    """Counts optimizer steps and tells their digests; traces the operators between two of them."""

    def __init__(self, spec: WorkerSpec, journal: Journal) -> None:
        self._observation = spec.observation or Observation()
        self._most, self._journal, self._step = spec.max_steps, journal, 0
        self._trace: Trace | None = None
        self._around = ExitStack()

    def __enter__(self) -> PlainWatch:
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        self._watch_step()
        return self

    def __exit__(self, *problem: Any) -> None:
        """The script ended: what came after its last optimizer step is a step of its own."""
        self._around.close()
        self._write()
        self._tell_evidence()

    def done(self) -> None:
        self._journal.tell(Done(worker=0, steps=self._step, fingerprint=None))

    def _watch_step(self) -> None:
        self._around.close()
        plant = self._observation.plant
        if plant is not None and plant.step == self._step and plant.kind != "batch":
            self._around.enter_context(planted(plant, None, None))
        if self._observation.traces(self._step):
            self._trace = Trace(None, {})
            self._around.enter_context(self._trace.watching())

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._trace is not None:
            grads = [(f"parameter {i}", digest(p.grad)) for i, p in parameters(optimizer) if p.grad is not None]
            self._trace.note("reduced", grads)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._trace is not None:
            self._trace.note("after", [(f"parameter {i}", digest(p)) for i, p in parameters(optimizer)])
        self._write()
        device = next((p.device for _, p in parameters(optimizer)), torch.device("cpu"))
        if self._step == 0:
            self._journal.event("record", json.dumps(surroundings(device)), 0)
        digests = {
            **random_states(device),
            "threads": str(torch.get_num_threads()),
            "settings": plain(flags()),
            "parameters": combined(read(digest(p) for _, p in parameters(optimizer))),
            "optimizer": combined(read(digest(t) for t in optimizer_tensors([optimizer]))),
        }
        self._journal.tell(Witness(worker=0, step=self._step, est=0, digests=digests))
        self._journal.tell(
            StepDone(worker=0, step=self._step, epoch=0, ests=[0], metrics={}, samples=0, time=time.monotonic())
        )
        self._tell_evidence()
        self._step += 1
        if self._most is not None and self._step >= self._most:
            raise Leaving(0)
        self._watch_step()

    def _write(self) -> None:
        if self._trace is not None:
            self._trace.write(path_of(Path(self._observation.trace_to or "."), self._step, 0))
            self._trace = None

    def _tell_evidence(self) -> None:
        for what, place in take_evidence():
            self._journal.event(f"evidence:{what}", place, self._step)


def parameters(optimizer: torch.optim.Optimizer) -> list[tuple[int, torch.Tensor]]:
    return list(enumerate(p for group in optimizer.param_groups for p in group["params"]))


def main(arguments: list[str]) -> int:
    spec = WorkerSpec.from_json(os.environ.pop(WORKER_VARIABLE))
    journal = Journal(spec, "warn")
    journal.tell(Ready(worker=0, pid=os.getpid(), step=0, seconds=0.0))
    if spec.observation is not None:
        apply_treatments(spec.observation.treatments)
    watch = PlainWatch(spec, journal)
    code = 0
    try:
        with watch:
            run_target(arguments)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException as problem:
        journal.tell(Failed(worker=0, step=0, ours=False, text=describe(problem)[1]))
        return 1
    watch.done()
    return code


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
