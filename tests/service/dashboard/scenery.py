"""A cluster with things going on, for the dashboard's tests and screenshots."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Literal

from easyscale.service.models import (
    ENDED,
    Allocation,
    Comparison,
    DeviceView,
    JobView,
    JobWord,
    LogFile,
    LogPart,
    PlanView,
    Point,
    PolicyFigures,
    ProposalView,
    SeatView,
    Series,
)
from service.fakes import FakeDesk, spec


class SceneDesk(FakeDesk):
    """The fake desk with devices, jobs, curves and output of one's own. `all`, `devices`, `news` may be changed."""

    policy = "easyscale"

    def __init__(self) -> None:
        super().__init__()
        self.all, self.devices, self.news = self._jobs, self._devices, self._records
        self.devices.clear()
        self.news.clear()
        self.points: dict[str, list[Point]] = {}
        self.output: dict[tuple[str, int, int, str], bytes] = {}

    def tell(self, kind: str, text: str, job: str | None = None, time: float | None = None) -> None:
        """A record is added, and whoever listens is woken."""
        record = self.write(kind, job, text)
        if time is not None:
            self.news[-1] = record.model_copy(update={"time": time})

    def change(self, job: str, **parts: Any) -> JobView:
        self.all[job] = self.job(job).model_copy(update=parts)
        return self.all[job]

    def print(self, job: str, worker: int, stream: str, text: str, run: int = 1) -> None:
        key = (job, run, worker, stream)
        self.output[key] = self.output.get(key, b"") + text.encode()

    def logs(self, job: str) -> list[LogFile]:
        own = [(key, data) for key, data in self.output.items() if key[0] == job]
        return [LogFile(run=r, worker=w, stream=s, size=len(data)) for (_, r, w, s), data in own]  # type: ignore[arg-type]

    def log(self, job: str, run: int, worker: int, stream: Literal["out", "err"], start: int, most: int) -> LogPart:
        data = self.output.get((job, run, worker, stream), b"")
        part = data[start : start + most]
        end = self.job(job).state in ENDED and start + len(part) >= len(data)
        text = part.decode(errors="replace")
        return LogPart(worker=worker, stream=stream, text=text, start=start, next=start + len(part), end=end)

    def series(self, job: str, most: int) -> Series:
        points = self.points.get(job, [])
        gap = max(1, math.ceil(len(points) / most))
        return Series(points=points[::-gap][::-1])

    def what_if(self, policies: Sequence[str]) -> Comparison:
        draw = random.Random(5)
        figures = [
            PolicyFigures(
                policy=name,
                jct=(1800 if name.startswith("easyscale") else 3100) * draw.uniform(0.9, 1.2),
                median_jct=1400 * draw.uniform(0.8, 1.6),
                makespan=9000 * draw.uniform(0.8, 1.3),
                utilization=draw.uniform(0.6, 0.95),
                switches=draw.uniform(0, 4),
            )
            for name in policies
        ]
        return Comparison(jobs=9, figures=figures, note="Work that nobody knows is guessed from what was done so far.")


# ------------------------------------------------------------------------------------------ what is put on it


def job_view(
    id: str,
    name: str,
    state: JobWord,
    submitted: float,
    *,
    team: str = "vision",
    user: str = "ada",
    ests: int = 8,
    **more: Any,
) -> JobView:
    wish = spec(name, args=["--lr", "0.1"], ests=ests, max_workers=ests, team=team, steps=more.get("steps"))
    return JobView(
        id=id,
        name=name,
        team=team,
        user=user,
        state=state,
        priority=more.pop("priority", 0),
        ests=ests,
        submitted=submitted,
        spec=wish,
        **more,
    )


def seats(devices: Sequence[str], ests: int) -> list[SeatView]:
    """ESTs shared out over the devices, the first ones get one more."""
    out, first = [], 0
    for worker, device in enumerate(devices):
        count = ests // len(devices) + (worker < ests % len(devices))
        out.append(SeatView(worker=worker, device=device, first=first, count=count))
        first += count
    return out


def run_through(desk: SceneDesk, job: JobView, stays: Sequence[tuple[float, Sequence[str]]], end: float | None) -> None:
    """Put a job on the desk that held these devices, each from a time on; `end` None: it still runs."""
    allocations, plans = [], []
    for i, (since, devices) in enumerate(stays):
        until = stays[i + 1][0] if i + 1 < len(stays) else end
        if not devices:
            continue
        allocations.append(Allocation(since=since, until=until, devices=list(devices)))
        plans.append(PlanView(time=since + 1, step=int((since - stays[0][0]) / 2), seats=seats(devices, job.ests)))
        what = "starts on" if not i else "now runs on"
        desk.tell("job-planned", f"{job.name} {what} {', '.join(devices)}.", job.id, since)
    held = list(stays[-1][1]) if end is None else []
    kinds: dict[str, int] = {}
    for device in held:
        kind = desk.devices[device].kind
        kinds[kind] = kinds.get(kind, 0) + 1
        desk.devices[device] = desk.devices[device].model_copy(update={"state": "held", "job": job.id})
    desk.all[job.id] = job.model_copy(
        update={
            "allocations": allocations,
            "plans": plans,
            "held": held,
            "devices": kinds,
            "ended": end,
            "run": 1,
            "started": stays[0][0] + 1,
            "pauses": [0.12 + 0.05 * (i % 3) for i in range(len(plans) - 1)],
        }
    )


def curve(desk: SceneDesk, job: str, since: float, until: float, steps: int) -> None:
    draw = random.Random(job)
    plans = desk.job(job).plans
    points = []
    for i in range(401):
        step = int(steps * i / 400)
        loss = 0.18 + 2.1 * math.exp(-step / (steps * 0.28)) + draw.gauss(0, 0.02)
        workers = next(len(plan.seats) for plan in reversed(plans) if plan.step <= step)
        speed = 880 * workers**0.93 + draw.gauss(0, 25)
        values = {"loss": loss, "steps_per_second": speed, "accuracy": 1 - 0.9 * math.exp(-step / (steps * 0.35))}
        points.append(Point(step=step, time=since + (until - since) * i / 400, values=values))
    desk.points[job] = points
    last = points[-1].values
    desk.change(job, loss=last["loss"], samples_per_second=last["steps_per_second"], step=steps)


def busy_cluster(now: float) -> SceneDesk:
    """Sixteen devices of three types, six jobs on them, some that wait, some that have ended."""
    desk = SceneDesk()
    for kind, count, memory in (("h100", 6, 80.0), ("a100", 6, 40.0), ("cpu", 4, 16.0)):
        for i in range(count):
            desk.devices[f"{kind}-{i}"] = DeviceView(
                id=f"{kind}-{i}",
                kind=kind,
                node=f"node-{i // 2}",
                memory_gb=memory,
                state="free",
                lent=kind == "a100" and i > 3,
            )
    desk.tell("service-started", "The service started.", time=now - 9000)
    _running(desk, now)
    _ended(desk, now)
    _waiting(desk, now)
    desk.devices["cpu-2"] = desk.devices["cpu-2"].model_copy(update={"state": "drained"})
    desk.devices["cpu-3"] = desk.devices["cpu-3"].model_copy(update={"state": "lost"})
    desk.devices["a100-5"] = desk.devices["a100-5"].model_copy(update={"state": "away"})
    desk.tell("device-lost", "cpu-3 is lost: its node does not answer.", time=now - 400)
    desk.tell("device-called", "a100-5 was called back by serving and left after 1.2 s.", time=now - 240)
    in_order = sorted(desk.news, key=lambda record: record.time)
    desk.news[:] = [record.model_copy(update={"seq": i + 1}) for i, record in enumerate(in_order)]
    return desk


def _running(desk: SceneDesk, now: float) -> None:
    h, a = [f"h100-{i}" for i in range(6)], [f"a100-{i}" for i in range(6)]
    grow = [
        ProposalView(
            devices={"h100": 5},
            rate=6.1,
            speedup=1.22,
            per_device=0.22,
            answer="No h100 is free; bert-large gains more.",
        ),
        ProposalView(
            devices={"h100": 8}, rate=9.4, speedup=1.88, per_device=0.21, sure=False, answer="Would take all of a type."
        ),
    ]
    shrink = [ProposalView(devices={"h100": 2}, rate=2.6, speedup=0.52, per_device=0.26, answer="Not needed now.")]
    resnet = job_view(
        "j-7f3a",
        "resnet50-imagenet",
        "running",
        now - 3300,
        steps=4000,
        grow=grow,
        shrink=shrink,
        expected_end=now + 2400,
    )
    run_through(
        desk,
        resnet,
        [(now - 3200, h[:1]), (now - 2500, h[:2]), (now - 1700, h[:4]), (now - 1000, [*h[:3]]), (now - 700, h[:4])],
        None,
    )
    curve(desk, "j-7f3a", now - 3200, now - 5, 2480)
    bert = job_view(
        "j-9c21", "bert-large", "running", now - 2100, team="language", user="grace", ests=16, steps=9000, priority=5
    )
    run_through(desk, bert, [(now - 2000, a[:2]), (now - 900, [*a[:4]]), (now - 300, [*a[:4], "h100-4"])], None)
    curve(desk, "j-9c21", now - 2000, now - 4, 3120)
    small = job_view("j-1b40", "vit-small-sweep-3", "running", now - 500, ests=4, user="lin", steps=1500)
    run_through(desk, small, [(now - 420, ["h100-5"])], None)
    curve(desk, "j-1b40", now - 420, now - 3, 400)
    cpu = job_view("j-2d77", "tabular-baseline", "starting", now - 60, team="risk", user="tove", ests=2)
    run_through(desk, cpu, [(now - 12, ["cpu-0", "cpu-1"])], None)
    for i in range(60):
        desk.print("j-7f3a", 0, "out", f"epoch {i // 20} step {2420 + i} loss {0.21 + 0.01 * (i % 5):.3f} lr 0.1\n")
        desk.print("j-7f3a", 1, "out", f"worker 1 step {2420 + i}\n")
    desk.print("j-7f3a", 0, "err", "UserWarning: a loader without workers\n")


def _ended(desk: SceneDesk, now: float) -> None:
    done = job_view(
        "j-0a11", "resnet18-cifar", "finished", now - 8000, steps=1200, fingerprint="9f2c" * 16, exit_code=0
    )
    run_through(
        desk, done, [(now - 7800, ["h100-0", "h100-1"]), (now - 5000, ["h100-1", "h100-2", "h100-3"])], now - 3350
    )
    curve(desk, "j-0a11", now - 7800, now - 3350, 1200)
    desk.tell("job-finished", "resnet18-cifar finished after 1,200 steps.", "j-0a11", now - 3350)
    failed = job_view(
        "j-0b12",
        "gpt-tiny",
        "failed",
        now - 5200,
        team="language",
        user="grace",
        ests=4,
        error="Worker 0 ended with exit code 1: FileNotFoundError: data/tokens.bin",
        exit_code=1,
    )
    run_through(desk, failed, [(now - 5000, ["a100-4"])], now - 4200)
    desk.tell("job-failed", "gpt-tiny failed: FileNotFoundError: data/tokens.bin", "j-0b12", now - 4200)
    asr = job_view(
        "j-0c13", "asr-conformer", "finished", now - 6000, team="speech", user="kim", ests=8, fingerprint="01ab" * 16
    )
    run_through(
        desk,
        asr,
        [(now - 5900, ["a100-0", "a100-1", "a100-2"]), (now - 3900, ["a100-1", "a100-2", "a100-3", "a100-5"])],
        now - 2200,
    )
    stopped = job_view("j-0d14", "vit-small-sweep-2", "cancelled", now - 3000, user="lin", ests=4)
    run_through(desk, stopped, [(now - 2900, ["h100-4", "h100-5"])], now - 1300)
    tab = job_view(
        "j-0e15", "tabular-grid", "finished", now - 2600, team="risk", user="tove", ests=2, fingerprint="77de" * 16
    )
    run_through(desk, tab, [(now - 2500, ["cpu-0"]), (now - 1900, ["cpu-0", "cpu-1", "cpu-3"])], now - 600)


def _waiting(desk: SceneDesk, now: float) -> None:
    wait = [
        (
            "j-3e01",
            "llama-7b-finetune",
            "language",
            "grace",
            32,
            "Needs 8 devices of h100 at once (gang); 6 exist.",
            10,
        ),
        ("j-3e02", "vit-small-sweep-4", "vision", "lin", 4, "Team vision is at its quota of 5 devices.", 0),
        ("j-3e03", "diffusion-256", "vision", "ada", 16, "All h100 and a100 are in use; after llama-7b-finetune.", 0),
        ("j-3e04", "asr-large", "speech", "kim", 8, "Wants 48 GB a device; only h100 have that, and none is free.", -5),
    ]
    for i, (id, name, team, user, ests, why, priority) in enumerate(wait):
        desk.all[id] = job_view(
            id, name, "queued", now - 900 + 200 * i, team=team, user=user, ests=ests, waits=why, priority=priority
        )
        desk.tell("job-submitted", f"{user} submitted {name} with {ests} ESTs.", id, now - 900 + 200 * i)
    desk.all["j-3e05"] = job_view("j-3e05", "bench-d2", "paused", now - 4000, user="ada", ests=4, step=310, steps=1000)


def add_many(desk: SceneDesk, count: int) -> None:
    """So many more jobs in the queue."""
    draw = random.Random(1)
    for i in range(count):
        state = draw.choice(["queued", "queued", "queued", "finished", "cancelled"])
        name = f"{draw.choice(['resnet', 'bert', 'vit', 'gpt', 'unet'])}-{i:04d}"
        team = draw.choice(["vision", "language", "speech"])
        why = f"Position {i} in the queue: all devices that it can use are held." if state == "queued" else None
        desk.all[f"j-m{i:04d}"] = job_view(
            f"j-m{i:04d}",
            name,
            state,
            desk.now() - 10_000 - i,
            team=team,
            waits=why,
            steps=1000,
            step=draw.randrange(1000),
        )
