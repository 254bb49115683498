"""The policies by name. Each is one file, imported when it is asked for: some need a solver, most need nothing."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from easyscale.core.errors import UsageError
from easyscale.scheduler.policy import Policy

_WHERE = {
    "fifo": "fifo:Fifo",
    "backfill": "backfill:Backfill",
    "srtf": "srtf:Srtf",
    "tiresias": "tiresias:Tiresias",
    "optimus": "optimus:Optimus",
    "gavel": "gavel:Gavel",
    "sia": "sia:Sia",
    "afs": "afs:Afs",
    "easyscale-homo": "published:Homogeneous",
    "easyscale-heter": "published:Heterogeneous",
    "sidecar": "sidecar:Sidecar",
    "elastic-batch": "elastic_batch:ElasticBatch",
    "easyscale": "ours:EasyScale",
}

_SOLVED = ("gavel", "sia")


def _maker(where: str) -> Callable[..., Policy]:
    module, _, name = where.partition(":")

    def make(**options: Any) -> Policy:
        policy: Policy = getattr(import_module(f"{__name__}.{module}"), name)(**options)
        return policy

    return make


POLICIES: dict[str, Callable[..., Policy]] = {name: _maker(where) for name, where in _WHERE.items()}


def make(name: str, **options: Any) -> Policy:
    """A policy by its name. Options are the keyword arguments of its class."""
    if name not in POLICIES:
        near = get_close_matches(name, POLICIES, n=3, cutoff=0.4)
        raise UsageError(
            f"there is no policy {name!r}.",
            f"the policies are {', '.join(POLICIES)}.",
            f"did you mean {' or '.join(near)}?" if near else "choose one of these.",
        )
    if name in _SOLVED and find_spec("scipy") is None:
        raise UsageError(
            f"policy {name!r} cannot decide here.",
            "it solves a program with HiGHS, which comes with scipy, and scipy is not installed.",
            "pip install 'easyscale-torch[cluster]'.",
        )
    try:
        return POLICIES[name](**options)
    except TypeError as wrong:
        raise UsageError(
            f"policy {name!r} does not take these options: {', '.join(options)}.",
            f"{wrong}.",
            "docs/policies.md lists the options of each policy.",
        ) from wrong
