"""What users and admins wish: each wish is checked, written down, and carried out by the rounds of the service."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from easyscale.core.errors import UsageError
from easyscale.service.bridge import first_speed
from easyscale.service.errors import ConflictError, KeyUsedError, NotFoundError
from easyscale.service.models import ClusterView, JobSpec, JobView, Lend, ScaleWish, Submitted
from easyscale.service.ports import Person
from easyscale.service.reading import Reading
from easyscale.service.records import News
from easyscale.service.snapshots import Snapshots
from easyscale.service.state import Device, Job

DRAIN_SECONDS = 60.0  # for a job to leave a device that is drained
MOST_ENV = 200


class Wishes(Reading):
    """The half of the desk that writes."""

    snapshots: Snapshots
    _clock: Callable[[], float]
    _wake: threading.Event

    # ------------------------------------------------------------------------------------ wishes: jobs

    def submit(self, spec: JobSpec, who: Person, key: str | None = None) -> Submitted:
        team = spec.team or who.team
        if key is not None and (jobs := self.book.log.used_key(who.user, key)) is not None:
            return Submitted(jobs=jobs, new=False)
        self._check_place(spec)
        with self.book.writing:
            news = [self._submission(one, who, team) for one in _array(spec)]
            names = [one.job for one in news if one.job is not None]
            try:
                self.book.write(news, (who.user, key, names) if key is not None else None)
            except KeyUsedError as used:
                return Submitted(jobs=used.jobs, new=False)
        self._wake.set()
        return Submitted(jobs=names)

    def _submission(self, spec: JobSpec, who: Person, team: str) -> News:
        while (name := f"{spec.name}-{secrets.token_hex(3)}") in self.book.state.jobs:
            pass
        plain = spec.model_dump(mode="json", exclude_defaults=True)
        job = Job(
            id=name, spec=spec, user=who.user, team=team, submitted=self._clock(), speed={},
            min_workers=spec.min_workers, max_workers=min(spec.ests, spec.max_workers or spec.ests),
        )  # fmt: skip
        speed = first_speed(job.needs(), self.book.scheduler.cluster.kinds)
        return self.book.news("job-submitted", name, spec=plain, user=who.user, team=team, speed=speed)

    def _check_place(self, spec: JobSpec) -> None:
        if spec.snapshot is not None:
            folder = self.snapshots.folder(spec.snapshot)
        else:
            folder = Path(spec.workdir or "")
            if not folder.is_absolute() or not _is_folder(folder):
                raise UsageError(
                    f"The working directory {folder} is not there.",
                    "it has to be a whole path to a folder on the service's machine.",
                    "name one, or send a copy of yours with `easyscale submit --snapshot`.",
                )
        if spec.script is None:
            return
        script = folder / spec.script
        try:
            inside = script.resolve().is_relative_to(folder.resolve())
            here = script.is_file()
        except (OSError, RuntimeError):  # a name that is too long, links in a circle, a folder that is closed to us
            inside, here = True, False
        if not inside or not here:
            raise UsageError(
                f"The script {spec.script} is not there.",
                "it leads out of the working directory." if not inside else f"there is no such file in {folder}.",
                "name a file in the working directory.",
            )

    def scale(self, job: str, wish: ScaleWish, who: Person) -> JobView:
        with self.book.writing:
            found = self._living(job)
            ests = found.spec.ests
            least = wish.min_workers or found.min_workers
            most = min(ests, wish.max_workers or found.max_workers)
            if found.gang:
                least = most
            if least > most:
                raise UsageError(
                    f"{least} to {most} workers are no range for {job}.",
                    f"it has {ests} ESTs, and its minimum cannot be above its maximum.",
                    "name a minimum that is not above the maximum.",
                )
            self.book.write([self.book.news(
                "job-limits", job, min_workers=1 if found.gang else least, max_workers=most, user=who.user
            )])  # fmt: skip
        return self._view_after(job)

    def pause(self, job: str, who: Person) -> JobView:
        return self._wish(job, who, "job-pause", {"run"}, "is paused already")

    def resume(self, job: str, who: Person) -> JobView:
        return self._wish(job, who, "job-resume", {"pause"}, "is not paused")

    def cancel(self, job: str, who: Person) -> JobView:
        with self.book.writing:
            found = self._living(job)
            news = [] if found.wish == "cancel" else [self.book.news("job-cancel", job, user=who.user)]
            if not found.active:
                news.append(self.book.news("job-cancelled", job, step=found.step))
            self.book.write(news)
        return self._view_after(job)

    def _wish(self, job: str, who: Person, kind: str, when: set[str], otherwise: str) -> JobView:
        with self.book.writing:
            found = self._living(job)
            if found.wish not in when:
                raise ConflictError(
                    f"The job {job} {otherwise if found.wish != 'cancel' else 'is being cancelled'}.",
                    f"it is {found.word}.",
                    f"`easyscale describe {job}` shows it.",
                )
            self.book.write([self.book.news(kind, job, user=who.user)])
        return self._view_after(job)

    def _view_after(self, job: str) -> JobView:
        self._wake.set()
        return self.job(job)

    def _living(self, job: str) -> Job:
        found = self._find(job)
        if found.over:
            raise ConflictError(
                f"The job {job} has ended.", f"it is {found.word}.", "submit it again if it should run again."
            )
        return found

    # ------------------------------------------------------------------------------------ wishes: devices, teams

    def drain(self, device: str, who: Person) -> ClusterView:
        with self.book.writing:
            self._device(device, {"in"}, "is not in use for training")
            by = self._clock() + DRAIN_SECONDS
            self.book.write([self.book.news("device-drain", id=device, user=who.user, by=by)])
        self._wake.set()
        return self.cluster()

    def undrain(self, device: str, who: Person) -> ClusterView:
        with self.book.writing:
            found = self._device(device, {"drained", "lost"}, "is not drained")
            kind = "device-undrain" if found.standing == "drained" else "device-found"
            self.book.write([self.book.news(kind, id=device, user=who.user, why="someone said so")])
        self._wake.set()
        return self.cluster()

    def lose(self, device: str, why: str, who: Person) -> ClusterView:
        with self.book.writing:
            self._device(device, {"in", "drained", "away"}, "is lost already")
            self.book.write([self.book.news("device-lost", id=device, why=why, user=who.user)])
        self._wake.set()
        return self.cluster()

    def lend(self, wish: Lend, who: Person) -> ClusterView:
        """Devices that were called back are there again; devices of a serving system that are new are added."""
        with self.book.writing:
            away = [d for d in self.book.state.devices.values() if d.standing == "away" and d.by is None]
            chosen = self._chosen(wish, away, "is not with the serving system, or has not been given back yet")
            self.book.write([self.book.news("device-lent", id=device, user=who.user) for device in chosen])
        self._wake.set()
        return self.cluster()

    def call_back(self, wish: Lend, who: Person) -> ClusterView:
        """The serving system needs them: idle ones first, then those whose job has the lowest priority."""
        with self.book.writing:
            state = self.book.state
            here = [device for device in state.devices.values() if device.standing == "in"]
            here.sort(key=lambda d: (d.job is not None, state.jobs[d.job].spec.priority if d.job else 0, not d.lent))
            chosen = self._chosen(wish, here, "is not in use for training")
            by = self._clock() + wish.within
            self.book.write([self.book.news("device-called", id=device, by=by, user=who.user) for device in chosen])
        self._wake.set()
        return self.cluster()

    def set_team(self, name: str, quota: int | None, borrow: bool, who: Person) -> None:
        self.book.write([self.book.news("team-set", name=name, quota=quota, borrow=borrow, user=who.user)])
        self._wake.set()

    def snapshot(self, archive: Path, who: Person) -> str:
        return self.snapshots.take(archive)

    def _device(self, name: str, standings: set[str], otherwise: str) -> Device:
        found = self.book.state.devices.get(name)
        if found is None:
            raise NotFoundError(
                f"There is no device {name}.", "the cluster never had it.", "`easyscale devices` lists them."
            )
        if found.standing not in standings:
            raise ConflictError(
                f"The device {name} {otherwise}.", f"it is {found.standing}.", "`easyscale devices` shows them."
            )
        return found

    def _chosen(self, wish: Lend, among: Sequence[Device], otherwise: str) -> list[str]:
        left = {device.slot.id: device for device in among}
        chosen: list[str] = []
        for name in wish.devices:
            if name not in left:
                self._device(name, set(), otherwise)
            chosen.append(left.pop(name).slot.id)
        for kind, count in wish.types.items():
            of_kind = [name for name, device in left.items() if device.kind == kind]
            if len(of_kind) < count:
                raise ConflictError(
                    f"There are not {count} {kind} to choose from.",
                    f"{len(of_kind)} of that type are where they would have to be.",
                    "`easyscale devices` shows them; ask for fewer.",
                )
            chosen += of_kind[:count]
        if not chosen:
            raise UsageError("No device was named.", "neither types nor devices say which.", "name some.")
        return chosen


def _array(spec: JobSpec) -> list[JobSpec]:
    if spec.array is None:
        return [spec]
    if len(spec.env) >= MOST_ENV:
        raise UsageError(
            f"The environment of {spec.name} has no room for EASYSCALE_ARRAY_INDEX.",
            f"{MOST_ENV} variables are the most, and each job of an array gets one more.",
            "leave one out.",
        )
    folder = spec.checkpoint_dir
    return [
        spec.model_copy(update={
            "name": f"{spec.name[:56]}-{index}", "array": None,
            "env": {**spec.env, "EASYSCALE_ARRAY_INDEX": str(index)},
            "checkpoint_dir": None if folder is None else str(Path(folder) / str(index)),
        })
        for index in range(spec.array)
    ]  # fmt: skip


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
