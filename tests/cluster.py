"""Runs a training function as the workers of a job, or as the ranks of stock DDP, in forked processes.

Forking a process that has imported torch takes milliseconds, so that hundreds of small jobs fit into a test run. What
crosses the boundary is what the launcher would pass: a `WorkerSpec`. The command itself is tested in tests/cli and
tests/e2e/test_command.py.
"""

from __future__ import annotations

import gc
import json
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch._dynamo  # DDP imports it; once here, not once in each forked rank

from easyscale.core.errors import EasyScaleError
from easyscale.core.plan import Plan
from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec

Result = dict[str, Any]
TIMEOUT = 60.0


def run_job(train: Callable[[], Result | None], split: Sequence[int], *, device: str = "cpu", **spec: Any) -> Result:
    """Train with EasyScale on this plan. Returns worker 0's result, all losses by virtual rank, and messages."""
    plan = Plan(tuple(split))
    with tempfile.TemporaryDirectory() as folder:
        base = WorkerSpec(
            ests=plan.ests, split=plan.split, rendezvous=f"{folder}/meet", device=device, timeout=TIMEOUT, **spec
        )
        outcomes = _fork([_worker(train, replace(base, worker=w)) for w in range(plan.workers)])
    return _join(outcomes, plan.ests)


def run_reference(train: Callable[[], Result | None], ests: int, *, device: str = "cpu", **spec: Any) -> Result:
    """The same script under `--engine ddp`."""
    with tempfile.TemporaryDirectory() as folder:
        base = WorkerSpec(
            ests=ests,
            split=(1,) * ests,
            rendezvous=f"{folder}/meet",
            device=device,
            engine="ddp",
            timeout=TIMEOUT,
            **spec,
        )
        outcomes = _fork([_worker(train, replace(base, worker=w)) for w in range(ests)])
    return _join(outcomes, ests)


def run_stock(train: Callable[[int, int], Result], ranks: int) -> Result:
    """A hand-written DDP script: `train(rank, ranks)` with torch.distributed initialised, nothing of ours."""

    def rank(number: int, meet: str) -> Callable[[], Result]:
        def body() -> Result:
            import torch.distributed as dist

            dist.init_process_group("gloo", store=dist.FileStore(meet, ranks), rank=number, world_size=ranks)
            result = train(number, ranks)
            dist.destroy_process_group()
            return result

        return body

    with tempfile.TemporaryDirectory() as folder:
        outcomes = _fork([rank(r, f"{folder}/meet") for r in range(ranks)])
    for outcome in outcomes:
        if "error" in outcome:
            raise AssertionError(outcome["error"])
    losses = [outcome.get("losses", []) for outcome in outcomes]
    return {**outcomes[0], "losses": {str(i): list(row) for i, row in enumerate(zip(*losses, strict=True))}}


class JobFailedError(AssertionError):
    """A worker raised; `.error` is the exception's text, `.kind` its class name."""

    def __init__(self, outcomes: list[Result]) -> None:
        first = next(o for o in sorted(outcomes, key=lambda o: o.get("kind") == "WorkerLostError") if "error" in o)
        self.error, self.kind = first["error"], first["kind"]
        super().__init__(self.error)


def seed_by_hand(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _worker(train: Callable[[], Result | None], spec: WorkerSpec) -> Callable[[], Result]:
    def body() -> Result:
        from easyscale.runtime import api
        from easyscale.runtime.stops import Leaving

        reader, writer = os.pipe()
        os.set_blocking(writer, True)
        messages = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        os.dup2(messages.fileno(), writer)
        os.close(reader)
        os.environ[WORKER_VARIABLE] = replace(spec, events_fd=writer).to_json()
        code = 0
        result: Result = {}
        try:
            result = train() or {}
            api.engine().finish()
        except Leaving as leaving:
            code = leaving.code
            api.engine().leave()
        messages.seek(0)
        return {**result, "code": code, "messages": [json.loads(line) for line in messages.read().splitlines()]}

    return body


def _fork(bodies: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run each body in a child; collect JSON results. Children never return into pytest."""
    children = []
    for body in bodies:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(body, writer)
        os.close(writer)
        children.append((pid, reader))
    outcomes = []
    for pid, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            raw = pipe.read()
        _, status = os.waitpid(pid, 0)
        outcomes.append(json.loads(raw) if raw else {"error": f"exit status {status}", "kind": "died"})
    return outcomes


def _child(body: Callable[[], Result], writer: int) -> None:
    try:
        gc.freeze()  # a collection would write to every object of pytest's, and so copy its memory
        torch.set_num_threads(1)
        outcome = body()
    except EasyScaleError as problem:
        outcome = {"error": str(problem), "kind": type(problem).__name__}
    except BaseException as problem:
        outcome = {"error": "".join(traceback.format_exception(problem)), "kind": type(problem).__name__}
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(outcome).encode())
    finally:
        os._exit(0)


def _join(outcomes: list[Result], ests: int) -> Result:
    if any("error" in outcome for outcome in outcomes):
        raise JobFailedError(outcomes)
    result = dict(outcomes[0])
    losses: dict[str, list[Any]] = {}
    fingerprints: dict[str, str] = {}
    for outcome in outcomes:
        for message in outcome["messages"]:
            if message["kind"] == "step":
                row = losses.setdefault(str(message["step"]), [None] * ests)
                for i, est in enumerate(message["ests"]):
                    row[est] = message["metrics"].get("loss", [None] * ests)[i]
            elif message["kind"] == "fingerprint":
                fingerprints[str(message["step"])] = message["sha"]
            elif message["kind"] == "done" and message["fingerprint"]:
                result["fingerprint"], result["steps"] = message["fingerprint"], message["steps"]
    result["losses"], result["step_fingerprints"] = losses, fingerprints
    result["witnesses"] = {
        (m["step"], m["est"]): m["digests"] for o in outcomes for m in o["messages"] if m["kind"] == "witness"
    }
    result["bytes_sent"] = [m["bytes_sent"] for o in outcomes for m in o["messages"] if m["kind"] == "done"]
    result["events"] = [m for o in outcomes for m in o["messages"] if m["kind"] == "event"]
    return result


def splits_of(ests: int) -> list[tuple[int, ...]]:
    """Every way to cut `ests` virtual ranks into contiguous ranges."""
    if ests == 0:
        return [()]
    return [(first, *rest) for first in range(1, ests + 1) for rest in splits_of(ests - first)]
