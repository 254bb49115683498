"""The service's part of docs/benchmarks.md, from the JSON of its scripts."""

from __future__ import annotations

from typing import Any

from parts.tables import table

SERVICE_LOAD = """The whole service in one process: HTTP, SQLite, scheduler and loop are the real ones, the masters are
numbers (`easyscale.testing.FakeFleet`). Each client asks every two seconds (a page of the list 0.4, a job 0.3, the
cluster 0.2, a submission 0.1); `no pause`: as fast as it is answered. `processor` is time of the thread that decides,
which other programs of the machine lengthen less than the clock. Every stream got every record, once and in order; the
log, replayed, gave the same decisions; no device was given out twice (`benchmarks/service_load.py`). `garbage`: whole
looks of Python for garbage. Of fewer than 100 values, "99 of 100" is the most. Aims: a decision below 200 ms and an
answer below 250 ms for 99 of 100, no round above 500 ms, memory below 500 MB. Answers to clients without a pause are
left out of that: they wait in line. The first decision after a restart is about all jobs anew."""

SERVICE_POLICIES = """Six real jobs on four devices of two types (places on the CPU), run by `easyscale up` with real
masters and workers, once under each policy, on the same machine (`benchmarks/service_policies.py`). Figures are from
the service's own log. `bits`: jobs whose sha256 is that of stock DDP alone. One run each, one after the other, on a
machine whose load changed meanwhile: the bits are exact, the seconds are a sample."""


def above(found: Any) -> str:
    """What did not reach the aims, by name: nobody has to compare by eye."""
    names = []
    for row in found["rows"]:
        what = row["what"]
        answer = what.startswith(f"{found['clients']} clients: ") and "cpu_p99" not in row
        slow = row.get("p99", 0) > 250 if answer else what.endswith(": decision") and row.get("p99", 0) > 200
        if slow or (what.endswith(": round") and row.get("max", 0) > 500) or row.get("rss_mb", 0) > 500:
            names.append(what)
    return f"Above them in this run: {'; '.join(names)}." if names else "All were reached in this run."


def service_load(found: Any) -> str:
    if not found:
        return ""
    at, lines, other = found["machine"], [], []
    for row in found["rows"]:
        if "p99" in row:
            processor = f"{row['cpu_p50']:g} / {row['cpu_p99']:g} / {row['cpu_max']:g}" if "cpu_p99" in row else ""
            times = [f"{row['p50']:g}", f"**{row['p99']:g}**", f"{row['max']:g}"]
            lines.append([row["what"], row["count"], *times, processor])
        rest = {name: value for name, value in row.items() if name not in ("what", "count", "p50", "p99", "max")}
        if any(not name.startswith("cpu_p") and name != "cpu_max" for name in rest):
            told = ", ".join(f"{name} {value:g}" for name, value in rest.items())
            other.append([row["what"], told])
    title = f"## The service under load: {found['jobs']:,} jobs, {found['devices']}, {found['clients']} clients"
    busy = f"{at['cores']} cores, used by others too (load {at['load_before'][0]} before, {at['load_after'][0]} after)"
    head = ["ms", "count", "median", "99 of 100", "most", "processor: median / 99 of 100 / most"]
    about = f"{SERVICE_LOAD} {above(found)}\nMeasured on {busy}."
    return f"{title}\n\n{about}\n\n{table(head, lines)}\n{table(['what', 'figures'], other)}"


def service_policies(found: Any) -> str:
    if not found:
        return ""
    lines = [
        [row["policy"], f"**{row['mean_jct']:.0f}**", f"{row['makespan']:.0f}", f"{row['utilization']:.2f}",
         row["starts"], row["switches"], f"{row['bits']} of {len(row['jct'])}",
         ", ".join(f"{name} {seconds:.0f}" for name, seconds in row["jct"].items())]
        for row in found["rows"]
    ]  # fmt: skip
    head = ["policy", "mean JCT, s", "makespan, s", "devices held", "starts", "switches", "bits", "JCT of each, s"]
    at = f"Load of the machine: {found['machine']['load_before'][0]} before, {found['machine']['load_after'][0]} after."
    title = f"## The service's policies with real jobs: {found['devices']}"
    return f"{title}\n\n{SERVICE_POLICIES} {at}\n\n{table(head, lines)}"


def soak(found: Any) -> str:
    if not found:
        return ""
    lines = [[row["stretch"], row["what"], row["first"], row["last"], row["allowed"]] for row in found["growth"]]
    about = (
        f"`make soak`, here for {found['minutes']:g} minutes: {found['jobs']} jobs came, {found['ended']} ended, "
        f"{found['answers']:,} answers, {found['events']:,} events, one restart by SIGKILL. Medians at the two "
        "ends of each stretch after its warm-up; `allowed` is how much more the last may be. What is kept of a job "
        "that has ended is allowed 12 KB."
    )
    head = ["stretch", "what", "first", "last", "allowed"]
    return f"## The service for a long time\n\n{about}\n\n{table(head, lines)}"
