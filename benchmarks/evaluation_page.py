"""Writes docs/evaluation.md and its pictures from the JSON in results/: no figure there is typed in by hand.

    python benchmarks/evaluation_page.py

A table whose rows are not there is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

# ruff: noqa: E402  the line above comes first
from benchmarks import evaluation_words as words
from benchmarks.evaluation import COSTS, LONG, PLACES, POLICIES, SOLVED, in_view
from benchmarks.evaluation_pictures import dots, lines

from easyscale.core.cluster import parse_devices
from easyscale.simulator.metrics import Spread, spread
from easyscale.simulator.serving import DAY, Service, diurnal

DOCS = HERE.parent / "docs"
OURS = "easyscale"
POLLUX = tuple(name for name in PLACES if name.startswith("pollux-"))
Row = Mapping[str, Any]


def read(name: str) -> dict[str, Any]:
    path = HERE / "results" / name
    return json.loads(path.read_text()) if path.exists() else {}


ROWS = read("evaluation.json")


def value(place: str, policy: str, cost: float, figure: str, seed: int = 0) -> float | None:
    row = ROWS.get(f"{place}/{policy}/{cost:g}" + (f"/{seed}" if seed else ""))
    return None if row is None else row[figure]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    shown = [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in (" | ".join(head), "|".join(["---"] * len(head)), *shown)) + "\n"


def number(seconds: float, hours: bool) -> str:
    return f"{seconds / 3600:,.1f}" if hours else f"{seconds:,.0f}"


# ---------------------------------------------------------------------------------------- all policies


def known(place: str, cost: float) -> bool:
    """Is every policy there? Those that take long may be missing."""
    return all(value(place, policy, cost, "jct") is not None for policy in POLICIES if policy not in SOLVED)


def compared(name: str, found: Mapping[str, float | None], *, marked: str = "") -> list[str]:
    """A row: each policy, the best of the others, and how many times as long that takes as ours."""
    ours = found[OURS]
    assert ours is not None
    hours = ours >= 20_000
    least = min(figure for figure in found.values() if figure is not None)
    others = {policy: figure for policy, figure in found.items() if figure is not None and policy != OURS}
    best = min(others, key=lambda policy: others[policy])
    cells = []
    for figure in found.values():
        text = "-" if figure is None else number(figure, hours)
        cells.append(f"**{text}**" if figure == least else text)
    ratio = others[best] / ours
    told = f"{ratio:.2f}" if ratio >= 1 else f"{ratio:.2f}: {best} is better"
    return [f"{name}{marked}, {'h' if hours else 's'}", *cells, best, told]


def means(cost: float, figure: str) -> dict[str, float | None]:
    """Over the Pollux workloads."""
    found: dict[str, float | None] = {}
    for policy in POLICIES:
        values = [value(place, policy, cost, figure) for place in POLLUX]
        there = [one for one in values if one is not None]
        found[policy] = sum(there) / len(there) if len(there) == len(values) else None
    return found


def policies_table(cost: float, figure: str, places: Sequence[str], *, pollux: bool = True) -> str:
    rows = []
    if pollux and all(known(place, cost) for place in POLLUX):
        rows.append(compared("pollux 1-8, mean", means(cost, figure)))
    for place in places:
        if known(place, cost):
            found = {policy: value(place, policy, cost, figure) for policy in POLICIES}
            rows.append(compared(place, found, marked=" (t)" if in_view(place, cost) else ""))
    return table(["place", *(f"`{policy}`" for policy in POLICIES), "best other", "its / ours"], rows) if rows else ""


def pollux_spread(figure: str) -> str:
    rows = []
    for cost in COSTS:
        for policy in POLICIES:
            values = [value(place, policy, cost, figure) for place in POLLUX]
            ours = [value(place, OURS, cost, figure) for place in POLLUX]
            if any(one is None for one in (*values, *ours)):
                continue
            of = spread([one for one in values if one is not None])
            against = spread([one / our for one, our in zip(values, ours, strict=True) if one and our])
            rows.append([
                f"{cost:g} s", f"`{policy}`", f"{of.mean:,.0f} ±{of.half:,.0f}", f"{of.least:,.0f} .. {of.most:,.0f}",
                "" if policy == OURS else f"{against.mean:.2f} ({against.least:.2f} .. {against.most:.2f})",
            ])  # fmt: skip
    head = ["switch", "policy", "mean over the 8, s", "least .. most", "its / ours, workload by workload"]
    return table(head, rows) if rows else ""


def in_short() -> str:
    """Where ours is the best, by switch cost."""
    rows = []
    for cost in COSTS:
        places = [place for place in PLACES if known(place, cost)]
        if not places:
            continue
        cells = [f"{cost:g} s"]
        for figure in ("jct", "makespan"):
            ratios = {place: best_other(place, cost, figure) for place in places}
            lost = [f"{place} ({ratio:.2f})" for place, ratio in ratios.items() if ratio < 1]
            held = [ratio for place, ratio in ratios.items() if not in_view(place, cost)]
            cells += [
                f"{len(places) - len(lost)} of {len(places)}", f"{middle(ratios.values()):.2f}",
                f"{middle(held):.2f}" if held else "-",
            ]  # fmt: skip
            if figure == "jct":
                cells.append(", ".join(lost) or "none")
        rows.append(cells)
    head = ["switch", "JCT: none better on", "best other / ours", "held out", "not the best on (best other / ours)",
            "makespan: none better on", "best other / ours", "held out"]  # fmt: skip
    return table(head, rows)


def not_run() -> str:
    """What the comparison lacks, beside what is never run."""
    found: dict[str, list[str]] = {}
    for cost in COSTS:
        for policy in SOLVED:
            missing = [
                place for place, of in PLACES.items() if of.jobs < LONG and value(place, policy, cost, "jct") is None
            ]
            if missing:
                found.setdefault(f"{cost:g} s", []).append(f"`{policy}` on {', '.join(missing)}")
    told = "; ".join(f"at {cost} {' and '.join(those)}" for cost, those in found.items())
    return f"Not run yet, so not among the others: {told}.\n" if told else ""


def best_other(place: str, cost: float, figure: str) -> float:
    ours = value(place, OURS, cost, figure)
    others = [value(place, policy, cost, figure) for policy in POLICIES if policy != OURS]
    assert ours is not None
    return min(other for other in others if other is not None) / ours


def middle(ratios: Iterable[float]) -> float:
    """The geometric mean: 2 and 1/2 are 1."""
    logs = [log(ratio) for ratio in ratios]
    return exp(sum(logs) / len(logs))


def places_table() -> str:
    head = ["place", "file", "jobs", "cluster", "the policy's number was chosen", "origin"]
    rows = [
        [name, f"`{place.file}`" + "".join(f", {key} {what}" for key, what in place.reading), f"first {place.jobs}",
         place.cluster, "with it in view (t)" if place.tuned else "without it", place.origin]
        for name, place in PLACES.items()
    ]  # fmt: skip
    return table(head, rows)


def seeds_table() -> str:
    policies, rows = ("easyscale", "srtf", "easyscale-heter", "sia", "afs"), []
    for place in ("es", "pollux-6"):
        runs = {policy: [value(place, policy, 1.0, "jct", seed) for seed in range(8)] for policy in policies}
        spans = {policy: [value(place, policy, 1.0, "makespan", seed) for seed in range(8)] for policy in policies}
        if any(one is None for values in runs.values() for one in values):
            continue
        for policy in policies:
            jct, last = (spread([one for one in of[policy] if one is not None]) for of in (runs, spans))
            rows.append([place, f"`{policy}`", plus_minus(jct), f"{jct.least:,.0f} .. {jct.most:,.0f}",
                         plus_minus(last), f"{last.least:,.0f} .. {last.most:,.0f}"])  # fmt: skip
    return table(["place", "policy", "JCT, s", "least .. most", "makespan, s", "least .. most"], rows) if rows else ""


def plus_minus(of: Spread) -> str:
    return f"{of.mean:,.0f} ±{of.half:,.0f}"


# ---------------------------------------------------------------------------------------- published figures


def published_table(found: Mapping[str, Row], place: str, names: Sequence[str]) -> str:
    rows = []
    for name in names:
        row = found[f"{place}/{name}"]
        theirs = row["published"] or [None, None]
        rows.append([
            f"`{name}`", f"{row['jct']:,.0f}", told(theirs[0], row["jct"]), f"{row['makespan']:,.0f}",
            told(theirs[1], row["makespan"]),
        ])  # fmt: skip
    return table(["policy", "JCT here, s", "published", "makespan here, s", "published"], rows)


def told(theirs: float | None, ours: float) -> str:
    return "" if theirs is None else f"{theirs:,.0f} (here {ours / theirs - 1:+.1%})"


def corrected_table(found: Mapping[str, Row]) -> str:
    profiles = ("hetero-1", "hetero-0.5", "level-0.5")
    names = [name.partition("/")[2] for name in found if name.startswith("level-0.5/")]
    rows = []
    for name in names:
        of = [found[f"{profile}/{name}"] for profile in profiles]
        rows.append([f"`{name}`", *(f"{row['jct']:,.0f} / {row['makespan']:,.0f}" for row in of)])
    heads = [f"`times={profile.partition('-')[0]}`, `fixed_share={profile.partition('-')[2]}`" for profile in profiles]
    return table(["policy", *heads], rows)


# ---------------------------------------------------------------------------------------- the claims


def commands(claim: Row) -> str:
    return "```\n" + "\n".join(claim["commands"]) + "\n```\n"


def of_claim(claim: Row, figures: Mapping[str, Callable[[Sequence[Row]], str]]) -> str:
    """A row for each way of changing devices and each policy, over the workloads."""
    keys = dict.fromkeys((row["how"], row["policy"]) for row in claim["rows"])
    rows = []
    for how, policy in keys:
        those = [row for row in claim["rows"] if (row["how"], row["policy"]) == (how, policy)]
        rows.append([how, f"`{policy}`", *(of(those) for of in figures.values())])
    return table(["change of devices", "policy", *figures], rows)


def over(name: str, form: str = "{:,.0f}") -> Callable[[Sequence[Row]], str]:
    def shown(rows: Sequence[Row]) -> str:
        if len(rows) == 1:  # one workload with several seeds
            one = rows[0][name]
            return form.format(one["mean"]) + (f" ±{form.format(one['half'])}" if one["half"] else "")
        of = spread([row[name]["mean"] for row in rows])
        return f"{form.format(of.mean)} ({form.format(of.least)} .. {form.format(of.most)})"

    return shown


def against(claim: Row, name: str, how: str, policy: str) -> Callable[[Sequence[Row]], str]:
    """Change of a figure against another row, workload by workload: the mean, and the largest."""
    base = {row["workload"]: row[name]["mean"] for row in claim["rows"] if (row["how"], row["policy"]) == (how, policy)}

    def shown(rows: Sequence[Row]) -> str:
        of = spread([row[name]["mean"] / base[row["workload"]] - 1 for row in rows])
        if not of.least and not of.most:
            return ""
        return f"{of.mean:+.0%}" + (f" ({of.least:+.0%} .. {of.most:+.0%})" if len(rows) > 1 else "")

    return shown


def claims() -> str:
    found, parts = read("claims.json"), []
    if claim := found.get("baselines"):
        figures = {
            "JCT, s": over("jct"), "against `fifo`": against(claim, "jct", "live", "fifo"),
            "makespan, s": over("makespan"), "makespan against `fifo`": against(claim, "makespan", "live", "fifo"),
            "utilization": over("utilization", "{:.0%}"),
        }  # fmt: skip
        parts += [words.CLAIM_BASELINES, commands(claim), of_claim(claim, figures)]
    if claim := found.get("sidecar"):
        figures = {
            "JCT, s": over("jct"), "against `fifo`": against(claim, "jct", "live, 1 s", "fifo"),
            "against its live switch": own_live(claim, "jct"),
            "makespan, s": over("makespan"), "makespan against `fifo`": against(claim, "makespan", "live, 1 s", "fifo"),
            "makespan against its live switch": own_live(claim, "makespan"),
        }  # fmt: skip
        parts += [words.CLAIM_SIDECAR, commands(claim), of_claim(claim, figures)]
    if claim := found.get("batch"):
        parts += [words.BATCH, commands(claim), batches(claim)]
    if claim := found.get("serving"):
        figures = {
            "added by training": over("gained", "{:+.1%}"), "against the service alone": more_than_alone,
            "given back too late": over("violations"), "JCT, s": over("jct"),
        }  # fmt: skip
        parts += [words.CLAIM_SERVING.format(alone=f"{service_alone():.1%}"), commands(claim), of_claim(claim, figures)]
    return "\n".join(parts)


def batches(claim: Row) -> str:
    """By what larger batches lose."""
    rows = []
    for tenths in dict.fromkeys(row["workload"] for row in claim["rows"]):
        of = {row["how"]: row for row in claim["rows"] if row["workload"] == tenths}
        both, alone = of["batch and devices"], of["devices alone"]
        rows.append([
            f"0.{tenths}", *(f"{one['per_hour']['mean']:.1f}" for one in (both, alone)),
            f"{both['per_hour']['mean'] / alone['per_hour']['mean']:.2f}",
            *(f"{one['jct']['mean']:,.0f}" for one in (both, alone)),
        ])  # fmt: skip
    heads = ["x", "jobs an hour, batch and devices", "devices alone", "ratio", "JCT, s, both", "devices alone"]
    return table(heads, rows)


def own_live(claim: Row, name: str) -> Callable[[Sequence[Row]], str]:
    def shown(rows: Sequence[Row]) -> str:
        return against(claim, name, "live, 1 s", rows[0]["policy"])(rows)

    return shown


def more_than_alone(rows: Sequence[Row]) -> str:
    return f"{spread([row['gained']['mean'] for row in rows]).mean / service_alone():+.0%}"


def service_alone() -> float:
    """What the service of the claim uses of its devices itself, over a day."""
    owned = parse_devices("t4:64")
    service = Service(owned=owned, demand=diurnal(owned))
    minutes = range(0, int(DAY), 600)
    return sum(service.needed("t4", float(minute)) for minute in minutes) / len(minutes) / owned["t4"]


# ---------------------------------------------------------------------------------------- the page


def page() -> str:
    single = [place for place in PLACES if place not in POLLUX]
    found = read("published.json")
    parts = [
        words.INTRODUCTION, "## In short\n", in_short(), words.AGAINST, not_run(),
        "## What the figures rest on\n", words.RESTS_ON,
        words.WEAK, "## Places\n", places_table(), words.ORIGINS,
    ]  # fmt: skip
    if found:
        parts += [
            "## Checked against published simulators\n", words.POLLUX_CHECK,
            published_table(found, "pollux-6", ("tiresias", "optimus")), words.PUBLISHED_ES,
            published_table(found, "es", ("one-at-a-time", "easyscale-homo", "easyscale-heter", "fifo", "backfill",
                                          "srtf")),
            words.CORRECTED, corrected_table(found),
        ]  # fmt: skip
    parts += [
        "## Each policy, each place\n",
        "The best of each row is bold. `its / ours`: the best other policy's figure over that of `easyscale`; above 1, "
        "ours is better. (t): the policy's number was chosen with this place in view. `-`: not run there.\n",
        "![JCT of each policy against ours, at a switch of 1 s](img/evaluation-jct.svg)\n",
        "![JCT of each policy against ours, by the price of a switch](img/evaluation-costs.svg)\n",
    ]
    for cost in COSTS:
        for figure, name in (("jct", "Average JCT"), ("makespan", "Makespan")):
            if text := policies_table(cost, figure, single):
                parts += [f"### {name}, a switch of {cost:g} s\n", text]
            if cost == 1.0 and (text := policies_table(cost, figure, POLLUX, pollux=False)):
                parts += [f"### {name}, a switch of 1 s, Pollux workloads one by one\n", text]
    for figure, name in (("jct", "Average JCT"), ("makespan", "Makespan")):
        if text := pollux_spread(figure):
            parts += [f"### {name}, spread over Pollux workloads 1-8\n",
                      "± is half of a 95% interval of the mean (Student's t, 8 workloads).\n", text]  # fmt: skip
    if text := seeds_table():
        parts += ["### Seeds\n", words.SEEDS, text]
    parts += ["## The claims of the sources\n", claims()]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def pictures() -> dict[str, str]:
    found = {}
    places = [place for place in PLACES if known(place, 1.0)]
    if places:
        ratios = {place: {policy: ratio(place, policy, 1.0) for policy in POLICIES} for place in places}
        found["evaluation-jct.svg"] = dots("JCT / JCT of easyscale, a switch of 1 s", ratios, OURS)
    costs = [cost for cost in COSTS if all(known(place, cost) for place in PLACES)]
    if len(costs) > 1:
        curves = {
            policy: {cost: middle(there) for cost in costs if (there := all_ratios(policy, cost))}
            for policy in POLICIES
            if policy not in SOLVED
        }
        title = "JCT / JCT of easyscale, geometric mean over all places, by the price of a switch"
        found["evaluation-costs.svg"] = lines(title, curves, OURS)
    return found


def ratio(place: str, policy: str, cost: float) -> float | None:
    ours, theirs = (value(place, one, cost, "jct") for one in (OURS, policy))
    return None if ours is None or theirs is None else theirs / ours


def all_ratios(policy: str, cost: float) -> list[float]:
    return [one for place in PLACES if (one := ratio(place, policy, cost)) is not None]


def main() -> None:
    (DOCS / "evaluation.md").write_text(page())
    for name, text in pictures().items():
        (DOCS / "img" / name).write_text(text)
    print(f"{DOCS.name}/evaluation.md")


if __name__ == "__main__":
    main()
