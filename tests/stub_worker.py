"""Stands in for `easyscale.runtime.worker`: same command line, same spec, same messages, no torch.

The target's name says how it behaves, its first argument how many global steps the script has.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from easyscale.core.messages import (
    Done,
    Event,
    Failed,
    Fingerprint,
    HandedOver,
    Message,
    Ready,
    StepDone,
    encode,
)
from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec

spec = WorkerSpec.from_json(os.environ[WORKER_VARIABLE])
arguments = [argument for argument in sys.argv[1:] if argument != "--module"]
behaviour, steps = arguments[0], int(arguments[1]) if len(arguments) > 1 else 4
ests = list(spec.plan.range_of(spec.worker))


def tell(message: Message) -> None:
    assert spec.events_fd is not None
    os.write(spec.events_fd, encode(message))


def fail(text: str, *, code: int, ours: bool = False, lost_peer: bool = False) -> NoReturn:
    tell(Failed(worker=spec.worker, step=0, ours=ours, text=text, lost_peer=lost_peer))
    sys.exit(code)


def wait_for_the_end() -> NoReturn:
    while True:
        signal.pause()


def first_step() -> int:
    """As the runtime: the manifest of a checkpoint, or of the newest one in a folder. `latest` is not needed here."""
    if spec.resume is None:
        return 0
    manifests = [*Path(spec.resume).glob("checkpoint.json"), *sorted(Path(spec.resume).glob("step-*/checkpoint.json"))]
    step: int = json.loads(manifests[-1].read_text())["step"]
    return step


def ready(step: int = 0) -> None:
    tell(Ready(worker=spec.worker, pid=os.getpid(), step=step, seconds=0.1))


def train() -> None:
    """All steps that remain, or those up to the hand-over. The loss tells EST and step."""
    step = first_step()
    ready(step)
    while step < steps:
        if step == spec.stop_at:
            hand_over(step)
        losses: list[float | None] = [est + step / 100 for est in ests]
        tell(
            StepDone(
                worker=spec.worker, step=step, epoch=step // 2, ests=ests, metrics={"loss": losses},
                samples=8 * len(ests), time=time.time(),
            )
        )  # fmt: skip
        step += 1
        if spec.fingerprint_every and step % spec.fingerprint_every == 0 and spec.worker == 0:
            tell(Fingerprint(step=step, sha=sha(step)))
    tell(
        Done(
            worker=spec.worker, steps=steps, fingerprint=sha(steps) if spec.worker == 0 else None,
            timings={"reduce": 1.0 + spec.worker}, bytes_sent=100,
        )
    )  # fmt: skip


def hand_over(step: int) -> NoReturn:
    assert spec.handoff is not None
    if spec.worker == 0:
        folder = Path(spec.handoff) / f"step-{step:010d}"
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text(json.dumps({"step": step}))
    tell(HandedOver(step=step, worker=spec.worker, timings={"reduce": 1.0}, bytes_sent=10))
    sys.exit(0)


def sha(step: int) -> str:
    return hashlib.sha256(str(step).encode()).hexdigest()


def interrupt_the_launcher(number: int) -> None:
    os.kill(os.getppid(), number)


def checkpoint_on(number: int, code: int) -> None:
    def handler(*_: object) -> None:
        tell(Event(worker=spec.worker, step=3, what="checkpoint-saved", text="Saved at step 3."))
        sys.exit(code)

    signal.signal(number, handler)


match behaviour:
    case "train":
        train()
    case "talk":
        print("hello")
        print("\rbar 1\rbar 2", end="", flush=True)
        print("trouble", file=sys.stderr)
        print("no newline", end="", flush=True)
    case "arguments":
        print(json.dumps(sys.argv[1:]))
    case "environment":
        print(json.dumps(dict(os.environ)))
    case "user-error" if spec.worker == 1:
        ready()
        fail("Traceback (most recent call last):\nValueError: bad data", code=1)
    case "our-error" if spec.worker == 1:
        fail("It broke.\n  why: it was old.\n  now: buy another.", code=2, ours=True)
    case "killed" if spec.worker == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    case "exits" if spec.worker == 1:
        os._exit(7)
    case "killed" | "exits":  # what the peers of one that vanished see
        fail("A peer left.", code=3, ours=True, lost_peer=True)
    case "stubborn" if spec.worker == 1:
        fail("ValueError: mine", code=1)
    case "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready()
        wait_for_the_end()
    case "sigterm" | "sigint":
        number, code = (signal.SIGTERM, 143) if behaviour == "sigterm" else (signal.SIGINT, 130)
        checkpoint_on(number, code)
        ready()
        if spec.worker == spec.plan.workers - 1:
            interrupt_the_launcher(number)
        wait_for_the_end()
    case "deaf":
        # Two signals at once would be one. Its own copy of the first tells that the launcher has heeded it.
        signal.signal(signal.SIGINT, lambda *_: interrupt_the_launcher(signal.SIGINT))
        ready()
        interrupt_the_launcher(signal.SIGINT)
        wait_for_the_end()
    case "interrupted-hand-over":
        # The signal comes when the state is in the hand-over only; the next workers must save it.
        if spec.resume is None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            interrupt_the_launcher(signal.SIGTERM)
            hand_over(spec.stop_at or 0)
        checkpoint_on(signal.SIGTERM, 143)
        ready(first_step())
        wait_for_the_end()
    case _:
        ready()
        wait_for_the_end()
