"""Workloads of Pollux (OSDI'21, petuum/adaptdl artifact): name, time, application, num_replicas, batch_size.

Each job trains one of six applications at a fixed global batch; how many steps that takes and how long each is, the
measured profiles say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from easyscale.core.cluster import Needs
from easyscale.core.errors import UsageError
from easyscale.planner.speed import Speed
from easyscale.simulator.profiles import Profile, pollux_profile
from easyscale.simulator.readers.rows import Bad, BadRow, Columns, Names, csv_rows
from easyscale.simulator.tables import FixedBatchSpeed, FixedEstSpeed
from easyscale.simulator.workload import Arrival, Workload

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
ORIGIN = "Pollux, OSDI'21 (petuum/adaptdl artifact)"
MOST = 64  # the largest number of devices that was measured


def read(
    path: Path,
    *,
    skip_bad: bool = False,
    profiles: str | Path | None = None,
    kind: str = "t4",
    ests: Literal["batch", "requested"] = "batch",
    single: tuple[str, ...] = ("ncf",),
) -> Workload:
    """`profiles`: the folder of the applications; by default looked for beside the trace.

    `ests`: "batch", as the artifact runs them: the batch is cut anew for each number of devices, up to the smallest
    local batch that was measured. "requested": as many ESTs as the user asked for devices, each with its mini-batch.
    `single`: applications that stay on one device, as in the artifact.
    """
    bad, names = Bad(path, skip=skip_bad), Names()
    rows = csv_rows(path, bad)
    columns = Columns(next(rows)[1], needed=COLUMNS, bad=bad)
    folder = _folder(path, profiles)
    known = {entry.name for entry in folder.iterdir() if entry.is_dir()}
    shared: dict[tuple[str, int, int], tuple[Needs, Speed, float]] = {}
    arrivals: list[Arrival] = []
    for line, row in rows:
        try:
            application = columns.text(row, "application")
            if application not in known:
                raise BadRow(
                    f"there is no profile of {application!r}.",
                    f"{folder} has {', '.join(sorted(known))}",
                    "add its profile",
                )
            requested, batch = columns.whole(row, "num_replicas"), columns.whole(row, "batch_size")
            time = columns.number(row, "time", least=0)
            key = application, requested, batch
            if key not in shared:
                profile = pollux_profile(folder / application)
                shared[key] = _job(profile, requested, batch, kind, ests, application in single)
        except BadRow as problem:
            bad.row(line, problem)
            continue
        needs, speed, work = shared[key]
        arrivals.append(
            Arrival(
                name=names.unlike(columns.text(row, "name")),
                time=time,
                needs=needs,
                speed=speed,
                work=work,
                requested=requested,
                kind=kind,
                application=application,
                line=line,
            )
        )
    arrivals.sort(key=lambda arrival: arrival.time)
    return Workload(name=path.stem, arrivals=tuple(arrivals), origin=ORIGIN, left_out=bad.counts)


def _job(
    profile: Profile, requested: int, batch: int, kind: str, ests: str, single: bool
) -> tuple[Needs, Speed, float]:
    if not profile.initial_batch <= batch <= profile.most_batch:
        raise BadRow(
            f"batch_size is {batch}.",
            f"{profile.name} was measured from {profile.initial_batch} to {profile.most_batch}",
        )
    most = min(MOST, batch // profile.least_local_batch)
    if requested > most:
        raise BadRow(
            f"num_replicas is {requested}.",
            f"a batch of {batch} feeds {most} devices: {profile.name} was not measured with less than"
            f" {profile.least_local_batch} samples on each",
        )
    work = profile.steps(batch)
    if ests == "requested":
        needs = Needs(ests=requested, types=(kind,))
        return needs, FixedEstSpeed(profile, batch, kind, most=requested), work
    needs = Needs(ests=max(most, requested), max_workers=1 if single else None, types=(kind,))
    return needs, FixedBatchSpeed(profile, batch, kind), work


def _folder(path: Path, profiles: str | Path | None) -> Path:
    if profiles is not None:
        folder = Path(profiles)
        if folder.is_dir():
            return folder
        raise UsageError(f"{folder} is no folder.", "profiles are folders, one per application.", "name their folder.")
    for above in path.resolve().parents[:3]:
        for folder in (above / "profiles" / "pollux", above / "traces"):
            if folder.is_dir() and any(folder.glob("*/placements.csv")):
                return folder
    raise UsageError(
        f"{path}: the profiles of its applications are not beside it.",
        "a workload of Pollux says what is trained; how long a step takes is in the artifact's folder `traces`.",
        "name that folder (--read profiles=DIR).",
    )
