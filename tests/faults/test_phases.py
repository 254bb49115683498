"""SIGKILL of a worker at each moment of a job: the others go on, no step is lost, the bits are stock DDP's.

Each moment meets each victim, and over all moments each plan meets each step: one row a moment here, the others with
`-m slow`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from faults.judge import Strike, survive
from faults.phases import IN_STEP, PHASES

PLANS = ((1, 1), (2, 2), (1, 2, 1), (1, 1, 1, 1), (3, 1), (1, 3), (2, 1, 2))
VICTIMS = ("first", "middle", "last")


@dataclass(frozen=True)
class Row:
    phase: str
    victim: str
    split: tuple[int, ...]
    step: int

    def __str__(self) -> str:
        return f"{self.phase}, {self.victim} of {'+'.join(map(str, self.split))}, step {self.step}"

    def strike(self) -> Strike:
        phase = PHASES[self.phase]
        direct = phase.direct if max(self.split) == 1 else None
        return Strike(
            worker={"first": 0, "middle": 1, "last": len(self.split) - 1}[self.victim],
            place=direct or phase.place,
            step=self.step,
            nth=1 if direct else phase.nth,
            after=phase.after,
        )


def all_rows() -> list[list[Row]]:
    """For each victim one row a moment; plans take turns, and each takes the step that it has met least."""
    met: Counter[tuple[tuple[int, ...], int]] = Counter()
    found = []
    for shift, victim in enumerate(VICTIMS):
        plans = [split for split in PLANS if len(split) > 2 or victim != "middle"]
        rows = []
        for i, (name, phase) in enumerate(PHASES.items()):
            split = plans[(i + 2 * shift) % len(plans)]
            step = min(phase.steps, key=lambda step: met[split, step])
            met[split, step] += 1
            rows.append(Row(name, victim, split, step))
        found.append(rows)
    return found


ALL = all_rows()
FEW = [ALL[i % len(ALL)][i] for i in range(len(PHASES))]


def test_each_plan_meets_each_step() -> None:
    met = {(row.split, row.step) for rows in ALL for row in rows}
    assert not {(split, step) for split in PLANS for step in IN_STEP} - met


@pytest.mark.parametrize("row", FEW, ids=str)
def test_a_worker_is_killed(row: Row) -> None:
    survive(PHASES[row.phase].case, row.split, [row.strike()])


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for rows in ALL for row in rows if row not in FEW], ids=str)
def test_each_victim_at_each_moment(row: Row) -> None:
    survive(PHASES[row.phase].case, row.split, [row.strike()])
