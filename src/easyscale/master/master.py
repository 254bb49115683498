"""The master of an elastic job: a thin shell around the brain. It hears workers and commands, watches processes, and
carries out what is decided; every input is in the journal before it has effects, so that another master can go on.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from easyscale.backends.lives import own_start
from easyscale.core.cluster import Slot
from easyscale.core.control import BOARD, Heard
from easyscale.core.ports import ElasticLauncher
from easyscale.core.requests import Accepted, AskCheckpoint, AskScale, AskStatus, Refused, Reply, Request
from easyscale.core.spec import Control
from easyscale.master.book import Book, is_written
from easyscale.master.channel import Channel
from easyscale.master.crewroom import Crewroom
from easyscale.master.decisions import Answer, Decision, End, Kill, Send, Start
from easyscale.master.inputs import Begun, Fact, Input, Said, Save, Scale, Stop
from easyscale.master.interrupts import Interrupts
from easyscale.master.journal import Entry, Heading, Journal, read
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.metrics import MetricsLog, last_logged_step, prepare_metrics_folder
from easyscale.master.placing import refuse_mix
from easyscale.master.progress import Progress, Screen
from easyscale.master.registry import JobFolder, JobRecord
from easyscale.master.report import check_report_path, report_of, write_report
from easyscale.master.resume import AUTO, first_step
from easyscale.master.situation import Terms
from easyscale.master.state import label
from easyscale.master.status import status_of
from easyscale.master.supervisor import Job, Outcome, StepListener
from easyscale.master.verdicts import find_verdict

TICK = 0.1  # seconds after which signals, limits, logs and the progress line are looked at, if nothing is heard
# A master that did not look for so long (seconds) was itself away: it cannot say who was silent meanwhile.
AWAY = 1.0


def run_elastic(
    job: Job,
    launcher: ElasticLauncher,
    screen: Screen,
    outputs: Outputs,
    folder: JobFolder,
    limits: Limits | None = None,
    *,
    title: str = "",
    slots: tuple[Slot, ...] | None = None,
    kinds: tuple[str, ...] = (),
) -> Outcome:
    """Run the job to its end. What cannot be written is refused before the first worker starts.

    `slots`: the devices that it begins on, where they have names. `kinds`: types of those that it may get later.
    """
    if outputs.report is not None:
        check_report_path(outputs.report)
    if outputs.metrics_dir is not None:
        prepare_metrics_folder(outputs.metrics_dir)
    template = job.template
    refuse_mix(template.determinism, slots or ())
    limits = replace(limits or Limits(), join=template.timeout, stop=template.timeout)
    heading = Heading(
        job=job, limits=limits, outputs=_absolute(outputs), title=title,
        first_step=first_step(template.resume, template.checkpoint_dir), slots=slots, kinds=kinds,
        verdict=find_verdict(job.target),
    )  # fmt: skip
    with folder.claim():
        journal = Journal(folder.journal)
        journal.head(heading)
        return Master(heading, launcher, screen, folder, journal).run()


def attach(folder: JobFolder, launcher: ElasticLauncher, screen: Screen) -> Outcome:
    """Become the master of a job whose master is gone; its workers find the new one by themselves."""
    with folder.claim():
        heading, past = read(folder.journal)
        return Master(heading, launcher, screen, folder, Journal(folder.journal), past).run()


class Master:
    """One job, once: `run`."""

    def __init__(
        self,
        heading: Heading,
        launcher: ElasticLauncher,
        screen: Screen,
        folder: JobFolder,
        journal: Journal,
        past: list[Entry] | None = None,
    ) -> None:
        record = folder.record()
        assert record is not None, "the folder of a job has its record"
        self._record: JobRecord = record
        self._heading, self._screen, self._folder, self._journal = heading, screen, folder, journal
        self._began = past[0].wall if past else time.time()
        self._book = Book(_terms(heading, folder), self._began)
        self._progress = Progress(heading.title)
        self._progress.begin(heading.job.schedule.at(heading.first_step)[0])
        self._listeners: list[StepListener] = []
        self._selector = selectors.DefaultSelector()
        self._inputs: list[Input] = []
        self._reply: Reply | None = None
        self._end: End | None = None
        self._told = 0  # how many of the state's events the screen has shown
        self._interrupts, self._heeded = Interrupts(), 0
        self._again = past is not None
        self._logged = 0  # steps before this one are in the metrics folder
        self._looked = time.monotonic()
        self._fold(past or [])
        self._crew = Crewroom(
            folder, launcher, self._selector, self._inputs.append, self._last_words, heading.limits
        )  # fmt: skip
        former = folder.master() if self._again else None
        self._channel = Channel(
            self._selector, record.token, self, heading.limits.listen, former.port if former is not None else 0
        )  # fmt: skip

    def run(self) -> Outcome:
        try:
            with self._interrupts:
                self._announce()
                self._begin()
                while self._end is None:
                    self._round()
            self._show()
            return self._conclude(self._end)
        except BaseException as problem:
            self._report(str(problem) or type(problem).__name__)
            raise
        finally:
            self._screen.close()
            self._crew.close()
            self._channel.close()
            self._journal.close()
            self._selector.close()
            for listener in self._listeners:
                with contextlib.suppress(OSError):
                    listener.close()

    # ------------------------------------------------------------------ what comes in

    def knows(self, worker: int) -> bool:
        return worker in self._book.brain.facts.hands

    def heard(self, said: Said) -> None:
        if self._book.is_news(said):
            self._inputs.append(said)
        else:
            self._channel.dropped["heard before"] += 1
            self._channel.send(said.worker, Heard(seq=self._book.heard[said.worker]))

    def asked(self, request: Request) -> Reply:
        if isinstance(request, AskStatus):
            return status_of(
                self._record, self._book, self._progress, events=request.events, dropped=self._channel.dropped,
                checkpoint_dir=self._heading.job.template.checkpoint_dir,
            )  # fmt: skip
        self._settle()  # what was heard before comes first
        if isinstance(request, AskScale) and self._heading.job.template.determinism == "D0":
            return Refused(
                what="The job runs at level D0, which keeps its bits only on the plan that it began with.",
                why="another number of workers would give another result.",
                now="start it with --determinism D1, the default.",
            )
        if isinstance(request, AskScale):
            given: Fact = Scale(
                workers=request.workers, split=request.split, leave=request.leave, slots=request.slots
            )  # fmt: skip
        elif isinstance(request, AskCheckpoint):
            if self._heading.job.template.checkpoint_dir is None:
                return Refused(
                    what="The job has no folder for checkpoints.",
                    why="it was started without --checkpoint-dir.",
                    now="start it with one.",
                )
            given = Save()
        else:
            given = Stop(number=signal.SIGTERM, now=request.now)
        self._reply = Accepted(text="The job is being stopped.")
        self._inputs.append(given)
        self._settle()
        return self._reply

    def _round(self) -> None:
        for key, mask in self._selector.select(TICK):
            key.data(mask)
        now = time.monotonic()
        if now - self._looked > AWAY:
            self._book.brain.forgive(now)
        self._looked = now
        self._crew.look()
        self._settle()
        for _ in range(self._interrupts.count - self._heeded):
            assert self._interrupts.first is not None
            self._inputs.append(Stop(number=self._interrupts.first))
        self._heeded = self._interrupts.count
        self._inputs += self._book.brain.due(time.monotonic())
        self._settle()
        self._show()

    def _last_words(self, worker: int) -> None:
        self._channel.drain(worker)

    # ------------------------------------------------------------------ what follows

    def _settle(self) -> None:
        """Fold all inputs, write them down, then act; until nothing new comes of it."""
        while self._inputs:
            inputs, self._inputs[:] = list(self._inputs), []
            entries, decisions = [], []
            numbers: dict[int, int] = {}
            for given in inputs:
                if isinstance(given, Said) and not self._book.is_news(given):
                    continue
                entry = Entry(now=time.monotonic(), wall=time.time(), given=given)
                decisions += self._book.take(entry)
                if is_written(entry):
                    entries.append(entry)
                if isinstance(given, Said) and given.seq is not None:
                    numbers[given.worker] = given.seq
            self._journal.write(entries)
            for worker, seq in numbers.items():
                self._channel.send(worker, Heard(seq=seq))
            for decision in decisions:
                self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Start():
                job = self._heading.job
                self._crew.start(decision, job.template, job.target, self._control())
            case Send():
                self._channel.send(decision.worker, decision.body)
            case Kill():
                self._crew.kill(decision.worker, hard=decision.hard, tree=decision.tree)
            case Answer():
                self._reply = decision.reply
            case End():
                self._end = decision

    def _control(self) -> Control:
        limits = self._heading.limits
        host = "127.0.0.1" if self._channel.host in ("0.0.0.0", "::") else self._channel.host
        return Control(
            host=host, port=self._channel.port, token=self._record.token, endpoint=str(self._folder.master_file),
            address=host, beat_seconds=min(0.5, limits.heartbeat / 10), orphan_seconds=limits.orphan,
            grace_seconds=limits.grace,
        )  # fmt: skip

    # ------------------------------------------------------------------ begin and end

    def _fold(self, past: list[Entry]) -> None:
        """Where an earlier master was. What it decided it has done, or the workers' next words bring it about."""
        for entry in past:
            for decision in self._book.take(entry):
                if isinstance(decision, End):
                    self._end = decision
        self._told = len(self._book.state.events)

    def _announce(self) -> None:
        self._folder.write_master(os.getpid(), own_start(), self._control().host, self._channel.port)

    def _begin(self) -> None:
        folder = self._heading.outputs.metrics_dir
        if folder is not None:
            self._logged = last_logged_step(folder) + 1 if self._again else 0
            self._listeners.append(MetricsLog(folder))
        self._inputs.append(Begun(again=self._again))
        if self._again:
            for hand in self._book.brain.facts.alive():
                self._crew.find(hand.number, hand.pid, hand.started)
        self._settle()

    def _show(self) -> None:
        """What is new to those who want to know: steps to the listeners, events and lines to the screen."""
        state = self._book.state
        for line in self._crew.lines():
            self._screen.worker_line(label(state, line.worker), line.text, error=line.error)
        for record in self._book.take_steps():
            self._progress.step(record)
            for listener in list(self._listeners) if record.step >= self._logged else ():
                try:
                    listener.step(record)
                except OSError as problem:  # a full disk costs the metrics, not the training
                    self._listeners.remove(listener)
                    text = f"Metrics are no longer written: {problem.strerror or problem}."
                    state.note(time.time(), record.step, "metrics-failed", text)
        for event in state.events[self._told :]:
            if event.what != "failed":  # shown whole, once, in the end
                self._screen.notice(event.text)
        self._told = len(state.events)
        if state.plans:
            self._progress.enter(state.plans[-1][1])
        self._screen.show(self._progress, time.monotonic())

    def _conclude(self, end: End) -> Outcome:
        state, seconds = self._book.state, time.time() - self._began
        error = end.error
        if end.how == "stopped":
            error = f"Stopped by {signal.Signals(end.exit_code - 128).name} after {state.steps} global steps."
            self._screen.notice(error)
        elif end.how == "failed":
            self._screen.error(_shown(end, label(state, end.worker) if end.worker is not None else ""))
        elif end.how == "plain":
            self._screen.notice("note: the script ended without es.init(); each worker ran it on its own.")
        else:
            sha = f" · sha256 {state.fingerprint[:16]}" if state.fingerprint else ""
            self._screen.notice(f"done: {state.steps} global steps in {seconds:.1f} s{sha}")
        self._report(error)
        return Outcome(
            exit_code=end.exit_code, state=state, seconds=seconds, error=error, interrupted=end.how == "stopped"
        )  # fmt: skip

    def _report(self, error: str | None) -> None:
        path = self._heading.outputs.report
        if path is not None:
            state = self._book.state
            state.dropped = dict(Counter(self._book.brain.facts.dropped) + self._channel.dropped)
            state.speeds = self._book.brain.balance.report()
            write_report(path, report_of(state, time.time() - self._began, error))


def _terms(heading: Heading, folder: JobFolder) -> Terms:
    template = heading.job.template
    return Terms(
        ests=template.ests,
        schedule=heading.job.schedule,
        rendezvous=lambda epoch: (
            f"{BOARD}{epoch}" if heading.limits.meeting == "master" else str(folder.rendezvous(epoch))
        ),
        first_step=heading.first_step,
        resume=template.resume,
        resume_again=AUTO if template.checkpoint_dir is not None else template.resume,
        limits=heading.limits,
        last_step=template.max_steps,
        level=template.determinism,
        slots=heading.slots,
        kinds=heading.kinds,
        verdict=heading.verdict,
    )


def _absolute(outputs: Outputs) -> Outputs:
    """A master that is started again may be started elsewhere."""

    def whole(path: Path | None) -> Path | None:
        return path.absolute() if path is not None else None

    return Outputs(report=whole(outputs.report), metrics_dir=whole(outputs.metrics_dir))


def _shown(end: End, who: str) -> str:
    text = (end.error or "").rstrip()
    if end.ours:
        return f"error: {text}" + (f"\n  ({who})" if who and who not in text else "")
    if end.est is not None:
        who = f"worker {end.worker} · EST {end.est}"
    step = f" · step {end.step}" if end.step is not None else ""
    return f"[{who}{step}] failed:\n{text}"
