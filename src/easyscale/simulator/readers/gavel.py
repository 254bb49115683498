"""Traces of Gavel (OSDI'20, stanford-futuredata/gavel) with its table of throughputs.

Lines are tab-separated: job type, command, working directory, name of the steps option, needs data, steps, devices,
priority weight, SLO, arrival. Older files have seven: type, command, option, needs data, steps, arrival, devices.

A job on s devices has s ESTs. On fewer they take turns: all but the last cost what one device alone takes, the last
what was measured for that number of devices.
"""

from __future__ import annotations

from pathlib import Path

from easyscale.core.cluster import Needs
from easyscale.core.errors import UsageError
from easyscale.simulator.profiles import GavelRates, gavel_rates
from easyscale.simulator.readers.philly import stem
from easyscale.simulator.readers.rows import Bad, BadRow, Names, csv_rows, number, positive, whole
from easyscale.simulator.tables import CountSpeed
from easyscale.simulator.workload import Arrival, Workload

ORIGIN = "Gavel, OSDI'20 (stanford-futuredata/gavel, MIT)"
APART = "_unconsolidated"
# (steps, devices, priority, arrival) by the number of values in a line
_PLACES = {10: (5, 6, 7, 9), 7: (4, 6, None, 5)}


def read(
    path: Path, *, skip_bad: bool = False, throughputs: str | Path | None = None, reference: str = "v100"
) -> Workload:
    """`throughputs`: Gavel's JSON file; by default looked for beside the trace. `reference`: the type asked for."""
    bad, names = Bad(path, skip=skip_bad), Names()
    rates = gavel_rates(_table(path, throughputs))
    shared: dict[tuple[str, int], CountSpeed] = {}
    arrivals: list[Arrival] = []
    for line, row in csv_rows(path, bad, delimiter="\t"):
        try:
            if len(row) not in _PLACES:
                raise BadRow(f"it has {len(row)} values.", "lines of Gavel have 7 or 10, with tabs between")
            steps_at, devices_at, priority_at, arrival_at = _PLACES[len(row)]
            model = row[0].strip()
            steps, time = positive(row[steps_at], "steps"), number(row[arrival_at], "arrival", least=0)
            devices = whole(row[devices_at], "devices")
            priority = 0 if priority_at is None else round(number(row[priority_at], "priority"))
            if (model, devices) not in shared:
                shared[model, devices] = _speed(rates, model, devices)
        except BadRow as problem:
            bad.row(line, problem)
            continue
        speed = shared[model, devices]
        arrivals.append(
            Arrival(
                name=names.unlike(f"job-{len(arrivals)}"),
                time=time,
                needs=Needs(ests=devices, priority=priority - 1 if priority > 1 else 0),
                speed=speed,
                work=steps,
                requested=devices,
                kind=reference if reference in speed.rates else next(iter(speed.rates)),
                application=model,
                line=line,
            )
        )
    arrivals.sort(key=lambda arrival: arrival.time)
    return Workload(name=stem(path), arrivals=tuple(arrivals), origin=ORIGIN, left_out=bad.counts)


def _speed(rates: GavelRates, model: str, ests: int) -> CountSpeed:
    together: dict[str, list[tuple[int, float]]] = {}
    apart: dict[str, list[tuple[int, float]]] = {}
    for kind, of in rates.items():
        alone = of.get((model, 1), 0.0)
        points = [
            (count, 1.0 / ((-(-ests // count) - 1) / alone + 1.0 / rate))
            for count in range(1, ests + 1)
            if alone > 0 and (rate := of.get((model, count), 0.0)) > 0
        ]
        if points:
            (apart if kind.endswith(APART) else together)[kind.removesuffix(APART)] = points
    if not together:
        known = sorted({name for of in rates.values() for name, _ in of})
        raise BadRow(f"there is no throughput of {model!r}.", f"the table has {', '.join(known[:5])}, ...", "add it")
    return CountSpeed(together, apart)


def _table(path: Path, throughputs: str | Path | None) -> Path:
    if throughputs is not None:
        if Path(throughputs).is_file():
            return Path(throughputs)
        raise UsageError(f"{throughputs} is not there.", "it was named as the table of throughputs.", "name another.")
    for above in path.resolve().parents[:5]:
        for place in (".", "profiles/gavel"):
            for name in ("simulation_throughputs.json", "simulation_throughputs.json.gz"):
                if (above / place / name).is_file():
                    return above / place / name
    raise UsageError(
        f"{path}: Gavel's simulation_throughputs.json is not beside it.",
        "a trace of Gavel counts steps; how many a second each job does is in that file.",
        "name it (--read throughputs=FILE).",
    )
