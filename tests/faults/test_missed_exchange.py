"""Between two loops the workers exchange contexts, and one that has them goes on at once. A loss at that moment can
leave another one waiting for an exchange that nobody will repeat: it takes the outcome from who was faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from easyscale.core.spec import WorkerSpec
from elasticity import step_here
from faults.judge import Marks, Split, Strike, replace_at, survive

R = "easyscale.runtime."
SESSION = R + "session:EstSession."
# Of the exchanges at the end of an epoch: the number, and the moment after it at which the victim dies.
AT_THE_END_OF_DATA = (1, SESSION + "end_of_data")
AT_THE_END_OF_THE_EPOCH = (2, SESSION + "epoch_ended")
AS_THE_NEXT_LOOP_BEGINS = (2, SESSION + "loop_begins")


def never_hears(worker: int, nth: int, step: int, marks: Marks) -> Callable[[WorkerSpec], None]:
    """What the others said in the `nth` exchange at `step` is lost on its way to `worker`."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        seen = 0

        def start(group: Any, payload: bytes) -> Callable[[], list[bytes]]:
            nonlocal seen
            finish: Callable[[], list[bytes]] = original(group, payload)
            seen += step_here() == step
            if seen != nth or step_here() != step or marks[0]:
                return finish

            def cut() -> list[bytes]:
                finish()
                marks.raise_()
                with group._waiting("in a gathering"):
                    for _ in range(2000):
                        if group._severed:
                            break
                        time.sleep(0.01)
                    raise RuntimeError("Connection reset by peer")

            return cut

        return start

    def surround(spec: WorkerSpec) -> None:
        if spec.worker == worker:
            replace_at(R + "group:Group.start_gathering", around)

    return surround


MOMENTS = {
    "end of data": (AT_THE_END_OF_DATA, 4),
    "end of epoch": (AT_THE_END_OF_THE_EPOCH, 4),
    "next loop": (AS_THE_NEXT_LOOP_BEGINS, 4),
    "end of the last data": (AT_THE_END_OF_DATA, 8),
    "end of the last epoch": (AT_THE_END_OF_THE_EPOCH, 8),
}


@pytest.mark.parametrize("split", [(1, 1, 2), (1, 1, 1, 1)], ids=["1+1+2", "1+1+1+1"])
@pytest.mark.parametrize(
    ("moment", "late"),
    [(moment, late) for moment in MOMENTS for late in (0, 2) if moment != "next loop" or late != 0],
)  # a loop begins with buffers of worker 0: nobody is there before it
def test_its_outcome_comes_from_one_that_has_heard(moment: str, split: Split, late: int) -> None:
    (nth, place), step = MOMENTS[moment]
    marks = Marks()
    strike = Strike(worker=1, place=place, step=step, after=True)
    survive("pictures", split, [strike], surround=never_hears(late, nth, step, marks), timeout=10.0)
    assert marks[0] == 1
