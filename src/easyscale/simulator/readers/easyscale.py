"""EasyScale's workload (SC'23 artifact) with its table of step times.

The header ends with a comma: rows have a ninth value without a name, an older number of epochs that nothing reads. One
row lacks it. `enable_heterogeneous_deterministic` is a number; any but 0 means yes, and one row says 40. Six of the 68
rows have the name of an earlier one: the published simulator lets them overwrite it, here they are jobs of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from easyscale.core.cluster import Needs
from easyscale.core.errors import UsageError
from easyscale.planner.model import EstSpeed
from easyscale.planner.reduction import Reduction
from easyscale.simulator.profiles import StepTimes, easyscale_step_times
from easyscale.simulator.readers.rows import Bad, BadRow, Columns, Names, csv_rows
from easyscale.simulator.workload import Arrival, Workload

COLUMNS = (
    "name", "time", "application", "max_parallelism", "batch_size", "epochs",
    "enable_heterogeneous_deterministic", "preferred_gpu",
)  # fmt: skip
ORIGIN = "EasyScale, SC'23 artifact"

# Samples of one "epoch" in the published simulator: one percent of each data set.
SAMPLES = {
    "resnet50": 12800.0, "vgg19": 12800.0, "shufflenetv2": 12800.0, "swintransformer": 12800.0,
    "yolov3": 165.51, "bert": 886.41, "electra": 886.41, "ncf": 49708.45,
}  # fmt: skip


def read(
    path: Path,
    *,
    skip_bad: bool = False,
    step_times: str | Path | None = None,
    times: Literal["level", "plain", "deterministic", "hetero"] = "level",
    fixed_share: float = 0.5,
    reduction: Reduction | None = None,
    duplicates: Literal["apart", "last"] = "apart",
) -> Workload:
    """`step_times`: the table overhead.csv; by default beside the trace.

    `times`: which of its columns. "level": deterministic for jobs on one type, hetero for those that may mix. A job's
    batch is seldom the table's: of its seconds, `fixed_share` stay as they are and the rest go with the batch. The
    artifact's own profiles are not public; times="hetero", fixed_share=1.0 comes nearest to its published figures.
    `duplicates`: "last" lets rows overwrite earlier ones of their name, as the published simulator does.
    """
    bad, names = Bad(path, skip=skip_bad), Names()
    table = easyscale_step_times(_table(path, step_times))
    rows = csv_rows(path, bad)
    columns = Columns(next(rows)[1], needed=COLUMNS, bad=bad)
    arrivals: dict[str, Arrival] = {}
    for line, row in rows:
        try:
            application = columns.text(row, "application").lower()
            if application not in table or application not in SAMPLES:
                raise BadRow(
                    f"there is no step time of {application!r}.",
                    f"known are {', '.join(sorted(table.keys() & SAMPLES))}",
                    "add it to the table of step times",
                )
            mixes = columns.number(row, "enable_heterogeneous_deterministic") != 0
            preferred = columns.text(row, "preferred_gpu").lower()
            if preferred not in table[application]:
                raise BadRow(
                    f"preferred_gpu is {preferred!r}.",
                    f"the table of step times has {', '.join(table[application])}",
                )
            parallel, batch = columns.whole(row, "max_parallelism"), columns.whole(row, "batch_size")
            epochs, time = columns.number(row, "epochs", least=0), columns.number(row, "time", least=0)
            if epochs == 0:
                raise BadRow("epochs is 0.", "a job does some work")
        except BadRow as problem:
            bad.row(line, problem)
            continue
        column = ("hetero" if mixes else "deterministic") if times == "level" else times
        seconds = {kind: _scaled(of, column, batch, fixed_share) for kind, of in table[application].items()}
        level: Literal["D1", "D2"] = "D2" if mixes else "D1"
        name = columns.text(row, "name")
        if duplicates == "apart":
            name = names.unlike(name)
        arrivals[name] = Arrival(
            name=name,
            time=time,
            needs=Needs(ests=parallel, level=level, types=None if mixes else (preferred,)),
            speed=EstSpeed(parallel, seconds, reduction, level),
            work=epochs * SAMPLES[application] / (batch * parallel),
            requested=parallel,
            kind=preferred,
            application=application,
            line=line,
        )
    ordered = sorted(arrivals.values(), key=lambda arrival: arrival.time)
    return Workload(name=path.stem, arrivals=tuple(ordered), origin=ORIGIN, left_out=bad.counts)


def _scaled(times: StepTimes, column: str, batch: int, fixed_share: float) -> float:
    seconds: float = getattr(times, column)
    return seconds * (fixed_share + (1.0 - fixed_share) * batch / times.batch)


def _table(path: Path, step_times: str | Path | None) -> Path:
    table = path.with_name("overhead.csv") if step_times is None else Path(step_times)
    if table.is_file():
        return table
    raise UsageError(
        f"{path}: the table of step times {table.name} is not {'beside it' if step_times is None else 'there'}.",
        "the trace says how many epochs a job trains; how long a mini-batch takes is in that table.",
        "name it (--read step_times=FILE).",
    )
