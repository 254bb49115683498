"""Writes docs/benchmarks.md and its pictures from the JSON in results/: no figure there is typed in by hand.

    python benchmarks/report.py

A result NAME-before.json is what NAME.json replaced: the page shows both. Pictures need matplotlib; without it the page
is written and the pictures stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parts import d2_page
from parts.decisions_page import planner, simulator
from parts.service_page import service_load, service_policies, soak
from parts.tables import table

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
Row = dict[str, Any]

INTRODUCTION = """# Benchmarks

Written by `benchmarks/report.py` from `benchmarks/results/*.json`; run `make bench` to measure again. Ratios are taken
side by side in one run; absolute times belong to the device that is named. The CPU rows were measured on two cores that
other jobs used at the same time: read the ratios of processor time, and their spread, rather than the clock.
"""

STEP_COST = """One worker runs k ESTs; the bare loop runs forward and backward of the same k mini-batches and one
optimizer step, without ESTs and sums. Bar: 0.98 of its throughput; with rows on the host, device memory at most 1.02
times that of k = 1. `before` is the code before it was profiled ([0008](design/0008-folding.md))."""

STEP_COST_GPU = """`before` is an earlier measurement, with weights of its own for the bare loop. `host` is
the host's time to launch one mini-batch, bare and with ESTs. What remains with rows on the host: the second half of
each chain can only be added after the last EST, so (N-1)(N/2+1)/N times the gradients cross the link from the start
of its backward on. At k = 16 that takes longer than the backward of the encoder, and the rest is waited for. And
while copies run, the GPU fetches its own commands over the same link: the compute stream then pauses some
microseconds before each kernel (the trace below). Rows on the device, which `staging="auto"` takes while there is
room, have neither."""

STEP_COST_CPU = """Ratios are those of processor time, the median of three processes with their spread in brackets;
both columns by the same script on the same machine. Before and after do not differ by more than that spread. What
remains is memory traffic: each EST writes its scaled gradients to a row of its own, where the bare loop adds into
one place that stays in the cache, and the sum reads all rows once."""

TRACE = """The middle of a run, seen by `torch.profiler` (`benchmarks/gpu/trace.py`): one global step of k ESTs with
rows on the host, and the bare loop over the same mini-batches. Dashed lines are the borders of ESTs. `host` are calls
of the CUDA runtime: it is ahead of the GPU all the time, so contexts switch without waiting."""

PACKING = """k ESTs in one worker, against k processes of stock DDP over Gloo on the same device: the same mini-batches,
reduction and settings. Device memory is what the device says is used, contexts included. On a CPU all share one core,
and memory is the sum of the processes' own (PSS). Bar: more throughput, 1/k of the memory."""

AGAINST_STOCK = """N workers with one EST each, against stock DDP with N processes over Gloo, all on the one device.
Bar: 0.97 of its throughput. With one EST a worker the sum is Gloo's own all-reduce, as in stock DDP."""

AGAINST_STOCK_GPU = """ResNet-50 is below the bar, the encoder is not. What only ResNet-50 has is buffers: 161 of them
went to the other workers one by one after each step, and each copy waits for a device that N processes share. `before`
to `throughput`: they leave EST 0's worker in one piece. They now also arrive in one piece (`runtime/buffers.py`); that
came after these figures, and the row has yet to be measured again on a GPU."""

BYTES = """Counted where they are sent, for a global step: the mean of the workers, in units of the gradients' size. The
messages in which workers agree on a step are in it. Bound: (N-1)/N + (p-1)/p."""

SWITCH = """From the last global step on the old plan to the first on the new one, with 4 ESTs: the pause holds one
whole step. `state` is what a worker that joins is sent, at the speed of a plain Gloo broadcast to as many receivers,
measured in the same run. Beside it the same change by `easyscale stop` and `run --resume latest`, and a hand-written
DDP script that leaves a checkpoint on SIGTERM and is started again by `torchrun` with the other number. Median of the
rounds, least and most in brackets. Bar: one step and the state at that speed; 0.3 s for the small model."""

RECOVERY = """4 ESTs on 2 workers, one of which is killed. From the signal to the next completed global step, which the
survivor completes with the ESTs that it adopts; `without them` leaves their two local steps out. No step is lost. Bar:
0.5 s without them."""

STEADY = """The same job under a master, on a fixed plan, and as `plain`: there contexts stay where they are. `ratio`:
processor time of all workers against `plain`, the median of the rounds with their spread. The account is the training
thread's own processor time for a global step in each worker, in microseconds: `capture` the random states, `note` what
changed in the contexts, `start` and `hear` the exchange with the others (agreement on the step included), `undo` the
copy of the parameters. Bar: 1% for heartbeats and replication."""

ELASTIC_GPU = """One job a model: 2 workers on the one GPU, 4, 2 again, then a SIGKILL in the middle of a step; its
sha256 and all losses are those of stock DDP on 4 ranks, undisturbed (`benchmarks/gpu/elastic.py`). New workers load
CUDA and build the model while the others train. Seconds as above: of a switch the pause, of the kill the time to the
next completed global step."""


SIZE = """Time of a global step and memory as one thing grows: ESTs on one worker, ESTs on two workers, the model with 4
ESTs. Device memory does not grow with k where rows wait on the host; host memory grows by one row of gradients for
each EST."""


def write_page() -> None:
    parts = [INTRODUCTION, *map(step_cost, ("gpu", "cpu")), trace()]
    parts += [packing(kind) for kind in ("gpu", "cpu")]
    parts += [against_stock(kind) for kind in ("gpu", "cpu")]
    parts += [bytes_sent(), *map(size, ("gpu", "cpu")), link()]
    parts += [*map(switch, ("gpu", "cpu")), recovery(), elastic_gpu(), steady(), planner(read("planner"))]
    parts += [simulator(read("simulator"))]
    parts += [d2_page.page(read, DOCS / "img")]
    parts += [service_load(read("service-load")), soak(read("soak")), service_policies(read("service-policies"))]
    DOCS.mkdir(exist_ok=True)
    (DOCS / "benchmarks.md").write_text("\n".join(part for part in parts if part))


def read(name: str) -> Any:
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def on(rows: Sequence[Row]) -> str:
    return f"{rows[0]['device']}, torch {rows[0]['torch']}"


def step_cost(kind: str) -> str:
    after, before = read(f"step_cost-{kind}"), read(f"step_cost-{kind}-before")
    rows = [*after, *(row for row in before if not any(_key(row) == _key(other) for other in after))]
    if not rows:
        return ""
    rows.sort(key=_key)
    base = {(r["model"], r["staging"]): r["peak_mib"] for r in [*before, *after] if r["k"] == 1}
    lines = []
    for row in rows:
        new = next((r for r in after if _key(r) == _key(row)), None)
        old = next((r for r in before if _key(r) == _key(row)), None)
        cells = [row["model"], row["k"], *([row["staging"]] if kind == "gpu" else [])]
        cells += [_ratio(old, kind), f"**{_ratio(new, kind)}**" if new else ""]
        cells += [f"{new['bare_ms']:.1f}" if new else "", f"{new['est_ms']:.1f}" if new else ""]
        if kind == "gpu":
            cells += [_host(new), _peak(new or old, base.get((row["model"], row["staging"])))]
        cells.append(f"{new['host_mib']:.0f}" if new else "")
        cells.append(f"{row['switch_us']:.0f}")
        lines.append(cells)
    head = ["model", "k", *(["rows on"] if kind == "gpu" else []), "before", "throughput", "bare, ms", "ESTs, ms"]
    head += ["host, ms", "peak memory, MiB"] if kind == "gpu" else []
    head += ["host memory, MiB", "switch, us"]
    remains = STEP_COST_GPU if kind == "gpu" else STEP_COST_CPU
    return f"## k ESTs against the bare loop: {on(rows)}\n\n{STEP_COST}\n\n{table(head, lines)}\n{remains}\n"


def _key(row: Row) -> tuple[str, str, int]:
    return row["model"], row["staging"], row["k"]


def _ratio(row: Row | None, kind: str) -> str:
    if row is None:
        return ""
    if kind == "gpu":
        return f"{row['ratio']:.3f}"
    low, high = row["spread"]
    return f"{row['cpu_ratio']:.3f} ({low:.2f} to {high:.2f})"


def _host(row: Row | None) -> str:
    return f"{row['host_bare_ms']:.0f} / {row['host_est_ms']:.0f}" if row else ""


def _peak(row: Row | None, base: float | None) -> str:
    if row is None:
        return ""
    return f"{row['peak_mib']:.0f}" + (f" ({row['peak_mib'] / base:.3f}x)" if base else "")


def trace() -> str:
    parts = []
    for path in sorted((HERE / "results").glob("trace-*.json")):
        found = json.loads(path.read_text())
        picture = f"bench-{path.stem}.svg"
        draw_trace(found, DOCS / "img" / picture)
        lines = []
        for loop, name in (("ests", "ESTs"), ("bare", "bare loop")):
            seen = found[loop]
            lines.append([
                name, f"{seen['step_us'] / 1e3:.1f}", f"{seen['idle_share']:.2%}", f"{seen['largest_gap_us']:.0f}",
                ", ".join(f"{gap:.0f}" for gap in seen["border_gaps_us"]),
                f"{min(seen['host_ahead_us']) / 1e3:.0f}",
            ])  # fmt: skip
        head = ["loop", "step, ms", "compute stream idle", "largest gap, us", "gaps at borders, us", "host ahead, ms"]
        parts.append(f"### {found['model']}, k = {found['k']}\n\n![{path.stem}](img/{picture})\n\n{table(head, lines)}")
    if not parts:
        return ""
    return f"## No gap between ESTs: {found['device']}, torch {found['torch']}\n\n{TRACE}\n\n" + "\n".join(parts)


def packing(kind: str) -> str:
    rows = read(f"packing-{kind}")
    if not rows:
        return ""
    lines = [
        [
            row["model"], row["k"], f"{row['est_ms']:.1f}", f"{row['packed_ms']:.1f}", f"**{row['speedup']:.2f}x**",
            f"{row['est_cpu_ms']:.0f}", f"{row['packed_cpu_ms']:.0f}", f"{row['est_mib']:.0f}",
            f"{row['packed_mib']:.0f}", f"**{row['memory_share']:.2f}** (1/k = {1 / row['k']:.2f})",
        ]
        for row in rows
    ]  # fmt: skip
    head = ["model", "k", "ESTs, ms", "packed, ms", "throughput", "ESTs, ms of processor", "packed, ms of processor",
            "ESTs, MiB", "packed, MiB", "share of the memory"]  # fmt: skip
    return f"## Against packing k processes: {on(rows)}\n\n{PACKING}\n\n{table(head, lines)}"


def against_stock(kind: str) -> str:
    rows = read(f"ddp-{kind}")
    if not rows:
        return ""
    before = {(row["model"], row["n"]): f"{row['ratio']:.3f}" for row in read(f"ddp-{kind}-before")}
    lines = [
        [row["model"], row["n"], f"{row['est_ms']:.1f}", f"{row['ddp_ms']:.1f}",
         *([before.get((row["model"], row["n"]), "")] if before else []), f"**{row['ratio']:.3f}**",
         f"{row['cpu_ratio']:.3f}"]
        for row in rows
    ]  # fmt: skip
    old = ["before"] if before else []
    head = ["model", "N", "ESTs, ms", "stock DDP, ms", *old, "throughput", "by processor time"]
    note = f"{AGAINST_STOCK_GPU}\n" if before else ""
    return f"## N workers x 1 EST against stock DDP: {on(rows)}\n\n{AGAINST_STOCK}\n\n{table(head, lines)}\n{note}"


def bytes_sent() -> str:
    rows = read("bytes-cpu")
    if not rows:
        return ""
    lines = [
        [row["n"], row["p"], row["split"], f"**{row['sent']:.3f}**", f"{row['bound']:.3f}", f"{row['stock_n']:.3f}",
         f"{row['stock_p']:.3f}"]
        for row in rows
    ]  # fmt: skip
    head = ["N", "p", "split", "sent", "bound", "stock DDP on N ranks", "stock DDP on p ranks"]
    return f"## Bytes sent by a worker: {rows[0]['model']}\n\n{BYTES}\n\n{table(head, lines)}"


def size(kind: str) -> str:
    rows = read(f"size-{kind}")
    if not rows:
        return ""
    picture = f"bench-size-{kind}.svg"
    draw_size(rows, DOCS / "img" / picture)
    lines = [
        [row["series"], f"{row['grows']:,}", row["model"], row["split"], f"{row['step_ms']:.1f}",
         f"{row['cpu_ms']:.1f}", f"{row['host_mib']:.0f}", f"{row['peak_mib']:.0f}" if row["peak_mib"] else ""]
        for row in rows
    ]  # fmt: skip
    head = ["what grows", "to", "model", "split", "step, ms", "processor, ms", "host memory, MiB", "device peak, MiB"]
    return f"## Cost against size: {on(rows)}\n\n{SIZE}\n\n![size](img/{picture})\n\n{table(head, lines)}"


def link() -> str:
    rows = read("link-gpu")
    if not rows:
        return ""
    lines = [
        [f"{row['piece_mib']:g}", f"{row['to_device_gbs']:.1f}", f"{row['to_host_gbs']:.1f}", f"{row['both_gbs']:.1f}",
         f"{row['launch_us']:.0f}"]
        for row in rows
    ]  # fmt: skip
    head = ["piece, MiB", "to the device, GB/s", "to the host, GB/s", "both at once, GB/s", "launch, us"]
    about = "Pinned memory, pieces of one size after the other: the floor under rows that wait on the host."
    return f"## The link between host and GPU: {rows[0]['device']}\n\n{about}\n\n{table(head, lines)}"


# ------------------------------------------------------------------------------------- workers that come and go


def switch(kind: str) -> str:
    rows = read(f"switch-{kind}")
    if not rows:
        return ""
    lines = [
        [row["model"], row["change"], row["kind"], f"**{row['pause_s']:.2f}** ({row['least_s']:.2f} to "
         f"{row['most_s']:.2f})", f"{row['step_s']:.3f}", f"{row['state_mb']:.0f}", f"{row['transfer_s']:.2f}"]
        for row in rows
    ]  # fmt: skip
    head = ["model", "workers", "how", "pause, s", "step after it, s", "state, MB", "state at link speed, s"]
    return f"## Pause of a switch: {on(rows)}\n\n{SWITCH}\n\n{table(head, lines)}"


def recovery() -> str:
    rows = read("recovery-cpu")
    if not rows:
        return ""
    lines = [
        [row["model"], f"of the {row['victim']} ESTs", f"{row['seconds']:.3f}", f"{row['local_s']:.3f}",
         f"**{row['extra_s']:.3f}** (at most {row['most_extra_s']:.3f})", row["losses"], f"{row['step_s']:.3f}"]
        for row in rows
    ]  # fmt: skip
    head = ["model", "worker killed", "next step after, s", "a local step, s", "without them, s", "losses", "step, s"]
    return f"## A worker is killed: {on(rows)}\n\n{RECOVERY}\n\n{table(head, lines)}"


def elastic_gpu() -> str:
    rows = read("elastic-gpu")
    if not rows:
        return ""
    lines = [
        [row["model"], row["what"], f"**{row['seconds']:.2f}**", f"{row['step_s']:.3f}",
         f"{row['adopted_s']:.3f}" if "adopted_s" in row else "", f"{row['state_mb']:.0f}"]
        for row in rows
    ]  # fmt: skip
    head = ["model", "what", "s", "step after it, s", "adopted local steps, s", "state, MB"]
    return f"## Switches and a kill at full size: {on(rows)}\n\n{ELASTIC_GPU}\n\n{table(head, lines)}"


def steady() -> str:
    rows = read("steady-cpu")
    if not rows:
        return ""
    places = ["capture", "note", "start", "hear", "undo"]
    lines = [
        [row["model"], row["split"], row["kind"], f"{row['step_ms']:.1f}", f"{row['cpu_ms']:.1f}",
         f"**{row['cpu_ratio']:.3f}** ({row['spread'][0]:.3f} to {row['spread'][1]:.3f})", f"{row['wall_ratio']:.3f}",
         *(f"{row['account_us'].get(place, [0])[0]:.0f}" for place in places)]
        for row in rows
    ]  # fmt: skip
    head = ["model", "split", "job", "step, ms", "processor, ms", "ratio", "by the clock", *places]
    return f"## What elasticity costs in each step: {on(rows)}\n\n{STEADY}\n\n{table(head, lines)}"


# ---------------------------------------------------------------------------------------------- pictures


def draw_trace(found: Row, path: Path) -> None:
    """Lanes over time, ESTs above the bare loop, on one scale."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "easyscale", "font.size": 8})
    from matplotlib import pyplot

    lanes = ["compute", "sums", "to device", "to host", "host"]
    colors = dict(zip(lanes, ("#4477aa", "#aa3377", "#ee6677", "#ccbb44", "#bbbbbb"), strict=True))
    figure, axes = pyplot.subplots(2, 1, figsize=(10, 3.6), sharex=True, height_ratios=(5, 2), layout="constrained")
    for axis, loop, shown in ((axes[0], "ests", lanes), (axes[1], "bare", ["compute", "host"])):
        seen = found[loop]
        for y, lane in enumerate(reversed(shown)):
            close = 300.0 if lane == "host" else 40.0
            spans = [(max(a, 0.0), b) for a, b in thin(seen["lanes"].get(lane, []), close) if b > 0]
            axis.broken_barh([(a / 1e3, (b - a) / 1e3) for a, b in spans], (y - 0.4, 0.8), color=colors[lane])
        for turn in seen["turns"]:
            axis.axvline(turn / 1e3, color="black", linewidth=0.6, linestyle="--")
        axis.set_yticks(range(len(shown)), list(reversed(shown)))
        axis.set_title(f"{found['k']} ESTs" if loop == "ests" else "bare loop", loc="left", fontsize=8)
        axis.set_xlim(0, max(found["ests"]["step_us"], found["bare"]["step_us"]) / 1e3)
    axes[1].set_xlabel(f"ms: {found['model']}, rows on the {found['staging']}, {found['device']}")
    save_picture(figure, path)


def thin(spans: Sequence[Sequence[float]], least: float) -> list[tuple[float, float]]:
    """Joined where the eye could not tell them apart anyway, so that the picture stays small."""
    joined: list[list[float]] = []
    for a, b in sorted(spans):
        if joined and a - joined[-1][1] < least:
            joined[-1][1] = max(joined[-1][1], b)
        else:
            joined.append([a, b])
    return [(a, b) for a, b in joined]


def draw_size(rows: Sequence[Row], path: Path) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "easyscale", "font.size": 8})
    from matplotlib import pyplot

    figure, (times, memory) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    where = "device" if rows[0]["peak_mib"] else "host"
    for name in dict.fromkeys(row["series"] for row in rows):
        mine = [row for row in rows if row["series"] == name]
        start = mine[0]["grows"]
        grows = [row["grows"] / start for row in mine]
        times.loglog(grows, [row["step_ms"] for row in mine], "o-", label=f"{name}, from {start:,}")
        memory.loglog(
            grows, [row["peak_mib"] or row["host_mib"] for row in mine], "o-", label=f"{name}, from {start:,}"
        )
    times.set_ylabel("ms a global step")
    memory.set_ylabel(f"{where} memory, MiB")
    for axis in (times, memory):
        axis.set_xlabel("times its first size")
        axis.grid(True, which="both", linewidth=0.3)
        axis.legend()
    save_picture(figure, path)


def save_picture(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    write_page()
