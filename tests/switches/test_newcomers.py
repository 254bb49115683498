"""A new worker that does not come: the switch is cancelled, the job goes on as it was and says why."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from easyscale.core.requests import Accepted
from easyscale.core.spec import WorkerSpec
from easyscale.master.limits import Limits
from elasticity import spec_here, wish
from switches.stage import PICTURES, Play, Scene, judge, play, stock, told, wished
from workloads import cnn, with_easyscale

ESTS, NEW = 4, 2


def ask_for_3() -> None:
    assert isinstance(wish(workers=3), Accepted)


GOES_ON = {1: Scene(act=ask_for_3, until=told("switch-cancelled"))}
# What a newcomer is refused for when it gets the state: the order is given by then.
IS_ORDERED = {1: wished(workers=3)}


def cancelled(played: Play, why: str) -> None:
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]
    (said,) = played.run.happened("switch-cancelled")
    assert said.startswith("The change to 3 workers is cancelled: ")
    assert why in said
    assert said.endswith("; the job goes on with 2 workers (2+2).")
    assert (played.codes[0], played.codes[1]) == (0, 0)


def in_newcomer(action: Callable[[], Any]) -> Callable[[WorkerSpec], None]:
    def surround(spec: WorkerSpec) -> None:
        if spec.worker == NEW:
            action()

    return surround


def raises() -> None:
    raise RuntimeError("no such data set")


def before_init() -> None:
    from easyscale.runtime import api

    original = api.init

    def init(*args: Any, **kwargs: Any) -> Any:
        raises()
        return original(*args, **kwargs)

    import easyscale

    easyscale.init = init


def test_it_raises_before_init() -> None:
    played = play(PICTURES, (2, 2), GOES_ON, surround=in_newcomer(before_init))
    cancelled(played, "failed before it was ready: RuntimeError: no such data set")


def test_it_raises_while_it_builds_the_model() -> None:
    def model() -> torch.nn.Module:
        if spec_here().worker == NEW:
            raise MemoryError("no room for the model")
        return cnn()

    played = play(replace(PICTURES, model=model), (2, 2), GOES_ON)
    cancelled(played, "failed before it was ready: MemoryError: no room for the model")


def test_it_raises_in_prepare() -> None:
    """Its model is another one: a layer that cannot be prepared."""

    def model() -> torch.nn.Module:
        built = cnn()
        if spec_here().worker == NEW:
            built[1] = torch.nn.SyncBatchNorm(8)
        return built

    played = play(replace(PICTURES, model=model), (2, 2), GOES_ON)
    cancelled(played, "The model has a SyncBatchNorm (1); ")


@pytest.mark.parametrize("code", [0, 3])
def test_it_exits(code: int) -> None:
    played = play(PICTURES, (2, 2), GOES_ON, surround=in_newcomer(lambda: os._exit(code)))
    cancelled(played, f"ended with exit code {code} before it was ready")
    assert played.codes[NEW] == code


def test_the_script_ends_it() -> None:
    def model() -> torch.nn.Module:
        if spec_here().worker == NEW:
            sys.exit(5)
        return cnn()

    cancelled(play(replace(PICTURES, model=model), (2, 2), GOES_ON), "ended with exit code 5 before it was ready")


def test_it_cannot_keep_the_bits() -> None:
    """Another number of threads decides other bits on a CPU."""

    def threads() -> None:
        torch.get_num_threads = lambda: 2  # a fork cannot have them: OpenMP's threads do not survive one

    played = play(PICTURES, (2, 2), IS_ORDERED, surround=in_newcomer(threads))
    judge(played, stock("pictures", PICTURES, ESTS), losses=1)
    assert all(split == (2, 2) for split in played.splits)
    (said,) = played.run.happened("switch-cancelled")
    assert "threads" in said


def test_its_model_has_other_shapes() -> None:
    def model() -> torch.nn.Module:
        built = cnn()
        if spec_here().worker == NEW:
            built[9] = torch.nn.Linear(52, 6)
        return built

    played = play(replace(PICTURES, model=model), (2, 2), IS_ORDERED)
    judge(played, stock("pictures", PICTURES, ESTS), losses=1)
    assert all(split == (2, 2) for split in played.splits)
    (said,) = played.run.happened("switch-cancelled")
    assert "another model" in said


def test_it_is_too_slow() -> None:
    def slow() -> None:
        time.sleep(60)

    played = play(PICTURES, (2, 2), GOES_ON, surround=in_newcomer(slow), limits=Limits(start=1.0))
    cancelled(played, "was not ready in 1 s")
    assert played.codes[NEW] == -9


def test_it_hangs_in_the_script() -> None:
    """It beats, but does not come to es.prepare()."""

    def model() -> torch.nn.Module:
        if spec_here().worker == NEW:
            time.sleep(60)
        return cnn()

    played = play(replace(PICTURES, model=model), (2, 2), GOES_ON, limits=Limits(start=1.0))
    cancelled(played, "was not ready in 1 s")


def test_another_wish_works_after_a_cancelled_one() -> None:
    def surround(spec: WorkerSpec) -> None:
        if spec.worker == NEW:
            os._exit(3)

    played = play(PICTURES, (2, 2), {**GOES_ON, 4: wished(workers=3)}, surround=surround)
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2)), (6, (2, 1, 1))]
    assert len(played.run.happened("switch-cancelled")) == 1


def test_one_of_two_newcomers_fails_and_the_other_goes_again() -> None:
    def surround(spec: WorkerSpec) -> None:
        if spec.worker == 3:
            os._exit(3)

    def ask_for_4() -> None:
        assert isinstance(wish(workers=4), Accepted)

    scene = Scene(act=ask_for_4, until=told("switch-cancelled"))
    played = play(PICTURES, (2, 2), {1: scene}, surround=surround)
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]
    assert played.codes[2] in (0, -15)


def test_a_script_without_es_epochs_does_not_grow_but_shrinks() -> None:
    """A newcomer could not know in which pass of a plain loop the others are."""

    def surround(spec: WorkerSpec) -> None:
        import easyscale

        easyscale.epochs = range

    hears = Scene(act=lambda: None, until=told("switch-cancelled"))
    scenes = {1: wished(workers=3), 3: hears, 4: wished(workers=1)}
    played = play(PICTURES, (2, 2), scenes, surround=surround)
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2)), (6, (4,))]
    (said,) = played.run.happened("switch-cancelled")
    assert "does not run inside es.epochs()" in said
    assert played.codes == {0: 0, 1: 0, NEW: 0}


def test_a_start_without_one_that_fails_early_is_the_jobs_failure() -> None:
    """Not a switch: before there is a plan, what a worker raises is what the script does."""
    played = play(PICTURES, (2, 1, 1), surround=in_newcomer(before_init), train=with_easyscale(PICTURES))
    assert played.run.exit_code == 1
    assert "no such data set" in (played.run.error or "")
