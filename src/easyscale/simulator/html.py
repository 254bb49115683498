"""The report: one HTML file with its drawings inside, light or dark as the reader has it. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from easyscale.simulator.compare import COLUMNS, Outcome, rows
from easyscale.simulator.plots import PALETTE, bars, devices_over_time, distribution, timeline

LIGHT = ("#2563eb", "#d9480f", "#0f8a5f", "#9333ea", "#b8860b", "#0891b2", "#be123c", "#4d7c0f", "#6b7280", "#7c2d12")
DARK = ("#7aa7ff", "#ff9b6a", "#4fd1a1", "#c99bff", "#e5c04b", "#5fd3ea", "#ff7d97", "#a6d44f", "#b0b7c3", "#e0a184")

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2330; --soft: #5b6575; --rule: #dfe3ea; %(light)s }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181f; --ink: #e8ebf0; --soft: #9aa4b2; --rule: #2c333d; %(dark)s }
}
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; } h3 { font-size: 1rem; }
p { margin: .3rem 0; } .soft, figcaption { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
figure { margin: .5rem 0 1rem; } svg { width: 100%%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } .grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2; }
.line.there { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 3; }
.d1 { opacity: .45; } .d2 { opacity: .65; } .d3 { opacity: .82; } .d4 { opacity: 1; }
.key { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8rem; height: .8rem;
  border-radius: 2px; margin-right: .3rem; vertical-align: -1px; }
details summary { cursor: pointer; }
"""


def page(
    outcomes: Sequence[Outcome], names: Sequence[str], kinds: Sequence[str], about: Mapping[str, str], origin: str = ""
) -> str:
    """`about`: what was simulated, line by line. `names`: of the jobs, for the timeline."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.spreads()["jct"].mean)
    title = f"Simulation of {about.get('trace', 'a workload')}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="soft">{escape(name)}: {escape(text)}</p>' for name, text in about.items()),
        f'<p class="soft">workload: {escape(origin)}</p>' if origin else "",
        "<h2>Policies</h2>", _table(outcomes), _explained(),
        "<h2>Job completion times</h2>", _legend([outcome.label for outcome in ordered]),
        _figure(distribution({outcome.label: outcome.distribution() for outcome in ordered}),
                "Share of jobs that are done within a time; quantiles, mean over the seeds."),
        "<h2>Utilization</h2>", _legend(kinds),
        _figure(bars({outcome.label: _by_type(outcome, kinds) for outcome in ordered}),
                "Device-seconds held / there, by type, mean over the seeds."),
        "<h2>Devices in use</h2>", _legend(kinds),
        *(_figure(devices_over_time(curve, _end(outcome), kinds), outcome.label)
          for outcome in ordered if (curve := outcome.curve) is not None),
        "<h2>Allocations</h2>", _legend(kinds),
        "<p>Each row is a job, in the order of submission; a darker bar holds more devices. First seed.</p>",
        *(_details(of.label, timeline(of.timeline, names, kinds, of.curve.start, _end(of)), first=not n)
          for n, of in enumerate(ordered) if of.curve is not None and of.timeline),
    ]  # fmt: skip
    style = STYLE % {"light": _variables(LIGHT), "dark": _variables(DARK)} + _classes()
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(outcomes: Sequence[Outcome]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows(outcomes)]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _explained() -> str:
    return (
        '<p class="soft">JCT: submission to end, mean, ± half of a 95% interval over the seeds. queue: submission to '
        "first device. fair: finish-time fairness, JCT over the JCT with a fair share, mean; worst: of the job that "
        "fared worst. switch: changes of devices a job.</p>"
    )


def _legend(labels: Sequence[str]) -> str:
    keys = (
        f'<span class="key"><i style="background: var(--c{number % PALETTE})"></i>{escape(label)}</span>'
        for number, label in enumerate(labels)
    )
    return f"<p>{''.join(keys)}</p>"


def _figure(drawing: str, caption: str) -> str:
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def _details(label: str, drawing: str, *, first: bool) -> str:
    return f"<details{' open' if first else ''}><summary>{escape(label)}</summary>{drawing}</details>"


def _by_type(outcome: Outcome, kinds: Sequence[str]) -> dict[str, float]:
    of = outcome.spreads()
    return {kind: of[f"by_type.{kind}"].mean for kind in kinds}


def _end(outcome: Outcome) -> float:
    assert outcome.curve is not None
    lengths = len(next(iter(outcome.curve.used.values()), []))
    return outcome.curve.start + outcome.curve.width * max(1, lengths)


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--c{number}: {colour};" for number, colour in enumerate(colours))


def _classes() -> str:
    return "".join(f".line.c{n} {{ stroke: var(--c{n}) }} .area.c{n} {{ fill: var(--c{n}) }}\n" for n in range(PALETTE))
