"""What the service writes down: everything that happened, in order, never changed. All that it knows is folded from it.

| kind | job | body |
|---|---|---|
| `device-added` | | id, kind, node, memory_gb, uuid, lent |
| `device-drain`, `device-undrain` | | id, by |
| `device-lost`, `device-found` | | id, why |
| `device-called` | | id, by: a lent device is called back, to be free then |
| `device-lent` | | id: a device that was called back is lent again |
| `device-left` | | id: nobody uses the called, drained or lost device any more; late: after its limit |
| `team-set` | | name, quota, borrow |
| `policy-set` | | policy |
| `job-submitted` | yes | spec, user, team, speed |
| `job-limits` | yes | min_workers, max_workers |
| `job-pause`, `job-resume`, `job-cancel` | yes | user |
| `job-starting` | yes | run, folder: written before its master is started, so that it is started once |
| `job-running` | yes | run, step: it has completed its first step of this run |
| `job-stopped` | yes | run, step: it left its devices with its state kept, and waits |
| `job-retried` | yes | run, why |
| `job-progressed` | yes | step, switch_seconds, loss, samples_per_second |
| `job-proposed` | yes | speed, limit |
| `job-planned` | yes | step, seats: which worker runs which ESTs on which device |
| `job-told` | yes | what, step, text, time: a sentence of its master |
| `job-late` | yes | its deadline has passed |
| `job-finished` | yes | step, fingerprint |
| `job-failed` | yes | step, error, exit_code |
| `job-cancelled` | yes | step |
| `decided` | | at, changes: [job, before, devices], by the policy |
| `job-allocated` | yes | devices: ids that it is to hold from now on |
| `store-failed` | | since, why: nothing could be written from then until now |
| `service-started` | | version, policy |
| `service-stopped` | | version |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """A record to be written."""

    time: float  # seconds since the epoch
    kind: str
    job: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(News):
    """A record that is written: `seq` numbers rise, and nothing is ever written below one that was read."""

    seq: int
