"""A job with everything that it leaves behind: runs it, logs its metrics, writes its report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from easyscale.core.ports import Launcher
from easyscale.master.metrics import MetricsLog, prepare_metrics_folder
from easyscale.master.progress import Screen
from easyscale.master.report import check_report_path, report_of, write_report
from easyscale.master.supervisor import Job, Outcome, StepListener, Supervisor


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where the report and the metrics go; None: nowhere."""

    report: Path | None = None
    metrics_dir: Path | None = None


def run_job(
    job: Job, launcher: Launcher, screen: Screen, outputs: Outputs | None = None, title: str = ""
) -> Outcome:
    """Run the job to its end. What cannot be written is refused before the first worker starts."""
    outputs = outputs or Outputs()
    listeners: list[StepListener] = []
    if outputs.report is not None:
        check_report_path(outputs.report)
    if outputs.metrics_dir is not None:
        prepare_metrics_folder(outputs.metrics_dir)
        listeners.append(MetricsLog(outputs.metrics_dir))
    supervisor = Supervisor(job, launcher, screen, listeners, title)
    began = time.monotonic()
    try:
        outcome = supervisor.run()
    except BaseException as problem:
        if outputs.report is not None:
            error = str(problem) or type(problem).__name__
            write_report(outputs.report, report_of(supervisor.state, time.monotonic() - began, error))
        raise
    if outputs.report is not None:
        write_report(outputs.report, report_of(outcome.state, outcome.seconds, outcome.error))
    return outcome
