"""The sentences in which a job tells people what happened to it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from easyscale.core.cluster import Slot
from easyscale.core.control import Member
from easyscale.core.errors import WorkerLostError
from easyscale.core.messages import Failed
from easyscale.core.plan import Plan
from easyscale.master.ranges import heirs, names


def workers_of(plan: Plan) -> str:
    """`2 workers (1+1)`."""
    return f"{plan.workers} worker{'s' if plan.workers > 1 else ''} ({plan})"


def devices_of(slots: Sequence[Slot]) -> str:
    """`device a`, `devices a and b`."""
    ids = [slot.id for slot in slots]
    listed = f"{', '.join(ids[:-1])} and {ids[-1]}" if len(ids) > 1 else ids[0]
    return f"device{'s' if len(ids) > 1 else ''} {listed}"


def how_ended(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def fate(ests: range | None, plan: Sequence[Member]) -> str:
    """Where the ESTs of a lost worker go on."""
    if ests is None:
        return "it had no ESTs"
    others = heirs(ests, plan)
    if not others:
        return "no worker is left"
    it = "its " + names(ests)
    listed = ", ".join(map(str, others[:-1])) + f" and {others[-1]}" if len(others) > 1 else str(others[0])
    verb = "continues" if len(ests) == 1 else "continue"
    return f"{it} {verb} on worker{'s' if len(others) > 1 else ''} {listed}"


def headline(message: Failed) -> str:
    return summary(message.text, ours=message.ours)


def summary(text: str, *, ours: bool) -> str:
    """Our own messages begin with what happened; a traceback ends with it."""
    lines = text.strip().splitlines() or ["(no text)"]
    return (lines[0] if ours else lines[-1]).rstrip(".")


def shell_code(code: int | None) -> int:
    """As a shell would report it; never 0: it is asked for where something went wrong."""
    if code is None or code == 0:
        return 1
    return 128 - code if code < 0 else code


def died(label: str, code: int | None, step: int, how: str | None = None) -> str:
    """The error of a job whose last worker is gone."""
    why = "it had no time to say why."
    if how is None and code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        how = f"was ended by {name}"
        if name == "SIGKILL":
            why = "someone killed it; if nobody did, the machine most likely ran out of memory."
    elif how is None:
        how = how_ended(code)
        why = "the script, or something it calls, ended the process."
    return str(
        WorkerLostError(
            f"{label} {how} at step {step}.",
            why,
            "look at its last lines above; a job with --checkpoint-dir goes on with --resume latest.",
        )
    )
