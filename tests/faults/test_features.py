"""Each training feature, with a worker that dies while it loads or in the optimizer step: still stock DDP's bits.

Where a worker dies in the optimizer step, its local steps are run again by another: what the body does after backward()
must then happen to the right context, and only there.
"""

from __future__ import annotations

import pytest

from faults.cases import AVERAGED_BUFFERS, FEATURES
from faults.judge import Strike, check, differences, run, stock, survive

pytestmark = pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated:FutureWarning")
LOADING, SGD, ADAM = "easyscale.runtime.data.feed:Feed.next", "torch.optim:SGD.step", "torch.optim:AdamW.step"


def strike(name: str, phase: str, worker: int = 1, nth: int = 2) -> Strike:
    """In the third step: by then momentum, scales and averages are there."""
    if phase == "loading":
        return Strike(worker=worker, place=LOADING, step=2, nth=nth)
    return Strike(worker=worker, place=ADAM if "Adam" in name else SGD, step=2, after=phase == "optimizer ended")


@pytest.mark.parametrize("phase", ["loading", "optimizer"])
@pytest.mark.parametrize("name", FEATURES)
def test_a_worker_is_killed(name: str, phase: str) -> None:
    survive(name, (2, 2), [strike(name, phase)])


@pytest.mark.slow
@pytest.mark.parametrize("split", [(1, 2, 1), (2, 2)], ids=["1+2+1", "2+2"])
@pytest.mark.parametrize("phase", ["loading", "optimizer", "optimizer ended"])
@pytest.mark.parametrize("name", FEATURES)
def test_the_holder_of_est_0_is_killed(name: str, phase: str, split: tuple[int, ...]) -> None:
    survive(name, split, [strike(name, phase, worker=0, nth=split[0])])


@pytest.mark.parametrize("split", [(2, 2), (1, 2, 1)], ids=["2+2", "1+2+1"])
@pytest.mark.parametrize("phase", ["loading", "optimizer", "optimizer ended"])
@pytest.mark.parametrize("victim", [0, 1])
def test_an_average_of_buffers_is_rank_0s_whoever_goes_on_with_it(
    victim: int, phase: str, split: tuple[int, ...]
) -> None:
    survive(AVERAGED_BUFFERS, split, [strike(AVERAGED_BUFFERS, phase, worker=victim, nth=split[victim])])


def test_without_rank_0s_buffers_the_average_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the heirs have averaged what their own ESTs left."""
    monkeypatch.setattr("easyscale.runtime.buffers.Buffers.early_to_live", lambda self: None)
    outcome = run(AVERAGED_BUFFERS, (2, 2), [strike(AVERAGED_BUFFERS, "optimizer", worker=0)])
    assert differences(outcome, stock(AVERAGED_BUFFERS, 4)) == ["average of worker 1"]


@pytest.mark.parametrize("phase", ["loading", "optimizer"])
def test_the_binary_tree_has_no_stock_ddp_so_one_worker_alone_is_the_judge(phase: str) -> None:
    alone = run("tree", (4,))
    assert alone.run.exit_code == 0, alone.run.text
    state, result = alone.run.state, alone.workers[0]
    expected = {**result, "fingerprint": state.fingerprint, "losses": {str(k): v for k, v in state.losses.items()}}
    assert differences(run("tree", (1, 2, 1)), expected) == []
    struck = [strike("tree", phase)]
    check(run("tree", (1, 2, 1), struck), expected, struck, lost=1)
    assert state.losses[0] == stock("pictures", 4)["losses"]["0"], "the first step comes before any sum"
