"""Records as sentences for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from easyscale.core.cluster import show
from easyscale.service.records import Record

Body = Mapping[str, Any]


def sentence(record: Record) -> str:
    told = _SENTENCES.get(record.kind)
    text = told(record.body) if told is not None else record.kind.replace("-", " ")
    return text[:2000]


def _decided(body: Body) -> str:
    changes = body.get("changes", [])
    if not changes:
        return "Nothing changes."
    parts = [f"{job} from {show(before)} to {show(after)}" for job, before, after in changes[:8]]
    more = f" and {len(changes) - 8} more" if len(changes) > 8 else ""
    return f"Decided: {', '.join(parts)}{more}."


def _allocated(body: Body) -> str:
    devices = body["devices"]
    return f"It is to use {', '.join(devices)}." if devices else "It gives its devices up and waits."


def _planned(body: Body) -> str:
    parts = []
    for seat in body["seats"]:
        first, count = seat["first"], seat["count"]
        ests = f"EST {first}" if count == 1 else f"ESTs {first} to {first + count - 1}"
        parts.append(f"{ests} on {seat.get('device') or 'worker ' + str(seat['worker'])}")
    return f"From step {body['step']} on: {'; '.join(parts)}."


def _by(body: Body) -> str:
    return f" by {body['user']}" if body.get("user") else ""


def _steps(body: Body) -> str:
    step = body.get("step", 0)
    return f"{step} global step{'s' * (step != 1)}"


def _progressed(body: Body) -> str:
    loss = f", loss {body['loss']:.4g}" if body.get("loss") is not None else ""
    of = f" of {body['total']}" if body.get("total") else ""
    return f"At step {body['step']}{of}{loss}."


def _finished(body: Body) -> str:
    sha = body.get("fingerprint")
    return f"Finished after {_steps(body)}" + (f", sha256 {sha[:16]}." if sha else ".")


def _quota(body: Body) -> str:
    quota = "no limit" if body["quota"] is None else f"a quota of {body['quota']} devices"
    borrows = body["borrow"] and body["quota"] is not None
    return f"Team {body['name']} has {quota}{', and may borrow' if borrows else ''}."


_SENTENCES: dict[str, Callable[[Body], str]] = {
    "device-added": lambda b: f"The device {b['id']} ({b['kind']}) is there.",
    "device-drain": lambda b: f"The device {b['id']} is drained{_by(b)}: its job leaves, and no other gets it.",
    "device-undrain": lambda b: f"The device {b['id']} may be used again.",
    "device-lost": lambda b: f"The device {b['id']} is lost: {b.get('why') or 'nobody said why'}.",
    "device-found": lambda b: f"The device {b['id']} is there again.",
    "device-called": lambda b: f"The device {b['id']} is called back{_by(b)}.",
    "device-lent": lambda b: f"The device {b['id']} is lent.",
    "device-left": lambda b: f"The device {b['id']} is free{', later than was asked' if b.get('late') else ''}.",
    "team-set": _quota,
    "policy-set": lambda b: f"The policy is {b['policy']}.",
    "job-submitted": lambda b: f"Submitted by {b['user']} for team {b['team']}.",
    "job-limits": lambda b: f"It may use {b['min_workers']} to {b['max_workers']} workers{_by(b)}.",
    "job-pause": lambda b: f"To be paused{_by(b)}.",
    "job-resume": lambda b: f"To go on{_by(b)}.",
    "job-cancel": lambda b: f"To be cancelled{_by(b)}.",
    "job-starting": lambda b: "It starts." if b["run"] == 1 else f"It starts for the {b['run']}. time.",
    "job-running": lambda b: "It trains." if not b["step"] else f"It trains, from step {b['step']} on.",
    "job-stopped": lambda b: f"It has left its devices after {_steps(b)}, with a checkpoint, and waits.",
    "job-retried": lambda b: f"It failed and is tried again: {b['why']}",
    "job-progressed": _progressed,
    "job-proposed": lambda b: "It has measured its devices anew"
    + (f" and wants at most {b['limit']} for now." if b.get("limit") else "."),
    "job-planned": _planned,
    "job-told": lambda b: str(b["text"]),
    "job-late": lambda b: "Its deadline has passed.",
    "job-finished": _finished,
    "job-failed": lambda b: f"Failed after {_steps(b)}: {b['error']}",
    "job-cancelled": lambda b: f"Cancelled after {_steps(b)}.",
    "decided": _decided,
    "job-allocated": _allocated,
    "store-failed": lambda b: f"Nothing could be written for a while, and can be again: {b['why']}",
    "service-started": lambda b: f"The service has started, with the policy {b.get('policy', '')}.",
    "service-stopped": lambda b: "The service has stopped; jobs go on.",
}
