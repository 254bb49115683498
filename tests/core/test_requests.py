"""Requests and replies cross the wire unchanged; what is not one is None, whatever the bytes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.cluster import Slot
from easyscale.core.control import MAX_FRAME, Beat, Frame, pack, unpack
from easyscale.core.requests import (
    Accepted,
    AskCheckpoint,
    AskScale,
    AskStatus,
    AskStop,
    Happening,
    JobStatus,
    Refused,
    Reply,
    Request,
    Seat,
    Speed,
    pack_reply,
    pack_request,
    to_plain,
    unpack_reply,
    unpack_request,
)

TOKEN = "secret"
STATUS = JobStatus(
    job="train-1a2b", name="train", state="switching", ests=4, started=1.5, wanted=(1, 1, 1, 1), waiting=(2, 3),
    held=("b", "c"), total=64, pauses=(0.25, 1.5),
    model={"speed": {"kind": "est"}, "limit": None, "switch_seconds": 0.5},
    seats=(Seat(worker=0, pid=11, first=0, count=2), Seat(worker=1, pid=None, first=2, count=2, slot="b")),
    step=12, epoch=1, plan_epoch=3, samples_per_second=10.5, loss=float("inf"), checkpoint_dir="c",
    dropped={"token": 2}, speeds=(Speed(worker=0, kind="cpu", seconds=0.5, spread=1.25, steps=20),),
    events=(Happening(step=3, what="plan", text="From step 3 on", time=2.0),),
)  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [
        AskStatus(),
        AskStatus(events=20),
        AskScale(workers=3),
        AskScale(split=(2, 1, 1)),
        AskScale(leave=0),
        AskScale(slots=(Slot(id="a", kind="v100", node="n", uuid="GPU-1"), Slot(id="b", kind="cpu"))),
        AskStop(now=True),
        AskCheckpoint(),
    ],
)
def test_a_request_comes_out_as_it_went_in(request_: Request) -> None:
    line = pack_request(request_, TOKEN)
    assert line.endswith(b"\n")
    assert unpack_request(line, TOKEN) == request_
    assert unpack_request(line, "other") is None
    assert unpack_reply(line, TOKEN) is None
    assert unpack(line, TOKEN) is None, "a worker's frame and a request are never taken for each other"


@pytest.mark.parametrize("reply", [STATUS, Accepted(text="yes", split=(2, 2)), Refused(what="no", why="so", now="go")])
def test_a_reply_comes_out_as_it_went_in(reply: Reply) -> None:
    line = pack_reply(reply, TOKEN)
    assert unpack_reply(line, TOKEN) == reply
    assert unpack_reply(line, "other") is None
    assert unpack_request(line, TOKEN) is None


def test_a_worker_s_frame_is_no_request() -> None:
    assert unpack_request(pack(Frame(body=Beat(worker=0, epoch=0, step=0, waiting=False)), TOKEN), TOKEN) is None


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "ask-status", "events": -1},
        {"kind": "ask-status", "events": 10**9},
        {"kind": "ask-status", "events": "all"},
        {"kind": "ask-scale"},
        {"kind": "ask-scale", "workers": 2, "leave": 1},
        {"kind": "ask-scale", "workers": 0},
        {"kind": "ask-scale", "workers": True},
        {"kind": "ask-scale", "workers": 2.0},
        {"kind": "ask-scale", "split": []},
        {"kind": "ask-scale", "split": [2, 0]},
        {"kind": "ask-scale", "split": 3},
        {"kind": "ask-scale", "leave": -1},
        {"kind": "ask-stop", "now": 1},
        {"kind": "ask-stop", "harder": True},
        {"kind": "ask-nothing"},
        {},
    ],
)
def test_a_request_with_wrong_fields_is_none(body: dict[str, Any]) -> None:
    line = json.dumps({"v": 1, "token": TOKEN, "from": None, "seq": None, "body": body}).encode()
    assert unpack_request(line, TOKEN) is None


def test_another_version_and_a_line_that_is_too_long_are_none() -> None:
    line = pack_request(AskStatus(), TOKEN)
    assert unpack_request(line.replace(b'"v":1', b'"v":2'), TOKEN) is None
    assert unpack_request(line.rstrip() + b" " * MAX_FRAME + b"\n", TOKEN) is None


def test_a_status_in_no_known_state_is_none() -> None:
    assert unpack_reply(pack_reply(STATUS, TOKEN).replace(b'"switching"', b'"dreaming"'), TOKEN) is None


def test_a_status_that_is_too_long_loses_its_oldest_events() -> None:
    events = tuple(Happening(step=n, what="plan", text="x" * 10_000, time=0.0) for n in range(200))
    line = pack_reply(JobStatus(job="j", name="j", state="training", ests=1, started=0.0, events=events), TOKEN)
    assert len(line) <= MAX_FRAME
    status = unpack_reply(line, TOKEN)
    assert isinstance(status, JobStatus)
    assert status.last_event == events[-1]
    assert 0 < len(status.events) < 200


@given(st.binary(max_size=200))
def test_any_bytes_are_none(line: bytes) -> None:
    assert unpack_request(line, TOKEN) is None
    assert unpack_reply(line, TOKEN) is None


@given(st.data())
def test_a_torn_line_is_none(data: st.DataObject) -> None:
    line = pack_reply(STATUS, TOKEN).rstrip()
    cut = data.draw(st.integers(0, len(line) - 1))
    assert unpack_reply(line[:cut], TOKEN) is None


def test_a_status_knows_its_plan() -> None:
    assert str(STATUS.plan) == "2+2"
    assert STATUS.seats[1].member.ests == range(2, 4)
    assert JobStatus(job="j", name="j", state="starting", ests=1, started=0.0).plan is None
    assert to_plain(STATUS)["seats"][0] == {"worker": 0, "pid": 11, "first": 0, "count": 2, "slot": None}
    assert "kind" not in to_plain(STATUS)


@pytest.mark.parametrize(
    ("loss", "plain"), [(0.5, 0.5), (None, None), (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_every_loss_has_a_form_in_json(loss: float | None, plain: object) -> None:
    text = json.dumps(to_plain(replace(STATUS, loss=loss)), allow_nan=False)
    assert json.loads(text)["loss"] == plain
