"""Negative controls: with one ingredient of the recovery spoilt, the comparison with stock DDP goes red.

So it would notice if that ingredient were missing; and no ingredient is there for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from easyscale.core.spec import WorkerSpec
from faults.judge import Strike, differences, replace_at, run, stock

R = "easyscale.runtime."
OPTIMIZER, FORWARD = "torch.optim:SGD.step", R + "turns:Turns.before_forward"
pytestmark = pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated:FutureWarning")
SUMMED = R + "reduce:Reducer._totals"


def no_undo() -> None:
    """Local steps are run again on the parameters of now, not on those that they had."""

    def around(_original: Callable[..., Any]) -> Any:
        @contextmanager
        def back(_undo: Any) -> Any:
            yield

        return back

    replace_at(R + "undo:Undo.back", around)


def older_contexts() -> None:
    """An adopted EST goes on with the random states of the boundary before."""
    former: dict[int, dict[str, bytes]] = {}

    def remember(original: Callable[..., Any]) -> Callable[..., Any]:
        def take(replicas: Any, boundary: int, serial: int, payloads: Any) -> None:
            former.update({est: dict(leaves) for est, leaves in replicas.leaves.items()})
            original(replicas, boundary, serial, payloads)

        return take

    def forget(original: Callable[..., Any]) -> Callable[..., Any]:
        def tree(est: int, leaves: dict[str, bytes]) -> Any:
            return original(est, {**leaves, **_states(former.get(est, {}))})

        return tree

    replace_at(R + "replicas:Replicas.take", remember)
    replace_at(R + "recovery:tree_of", forget)


def no_rows() -> None:
    """The gradients of the EST whose sum broke off are not kept."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def let_go(reducer: Any) -> None:
            original(reducer)
            for b in range(len(reducer._buckets)):
                reducer._staging.rows(b)[reducer._est - reducer.ests.start].zero_()

        return let_go

    replace_at(R + "reduce:Reducer._let_go", around)


def buffers_of_another_round() -> None:
    """A local step is run again from the buffers of its end, not from those of its beginning."""

    def around(_original: Callable[..., Any]) -> Callable[..., Any]:
        def ghost_to_live(buffers: Any) -> None:
            buffers.put(buffers._base if buffers.is_current else buffers._before)

        return ghost_to_live

    replace_at(R + "buffers:Buffers.ghost_to_live", around)


def untold_states() -> None:
    """The random states of an EST that ran again are not told to the others."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def note_one(exchange: Any, est: int, *args: Any) -> None:
            before = _states(exchange._sender.leaves[est])
            original(exchange, est, *args)
            exchange._sender.leaves[est].update(before)

        return note_one

    replace_at(R + "exchange:Exchange.note_one", around)


def _states(leaves: dict[str, bytes]) -> dict[str, bytes]:
    return {name: raw for name, raw in leaves.items() if name.startswith("rng.")}


def spoil(what: Callable[[], None]) -> Callable[[WorkerSpec], None]:
    return lambda _spec: what()


BROKEN = {
    "no undo": (no_undo, "own buffers", (2, 2), [Strike(worker=1, place=OPTIMIZER, step=2)]),
    "contexts of the boundary before": (older_contexts, "pictures", (2, 2), [Strike(worker=1, place=SUMMED, step=3)]),
    "no rows": (no_rows, "pictures", (1, 2, 1), [Strike(worker=1, place=SUMMED, step=2)]),
    "buffers of another round": (
        buffers_of_another_round, "reads its buffers", (2, 2), [Strike(worker=0, place=OPTIMIZER, step=2)],
    ),
    "states that ran again": (
        untold_states, "pictures", (1, 1, 1),
        [Strike(worker=2, place=FORWARD, step=2), Strike(worker=1, place=OPTIMIZER, step=2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_spoilt_recovery_shows(name: str) -> None:
    what, case, split, strikes = BROKEN[name]
    sound = [Strike(**{**vars(strike), "marks": type(strike.marks)()}) for strike in strikes]
    assert differences(run(case, split, sound), stock(case, sum(split))) == []
    spoilt = run(case, split, strikes, surround=spoil(what), timeout=8.0)
    assert all(strike.happened for strike in (*sound, *strikes))
    assert spoilt.run.exit_code == 0, spoilt.run.text
    assert differences(spoilt, stock(case, sum(split)))
