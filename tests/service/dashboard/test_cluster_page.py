"""The cluster's page, and the stream of news that keeps it up to date."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from service.dashboard.conftest import Complaints, OpenPage
from service.dashboard.served import Served

pytestmark = pytest.mark.slow


def test_it_shows_which_job_runs_on_which_device_by_type(open_page: OpenPage) -> None:
    page = open_page("ann")
    expect(page.locator(".type h3")).to_have_text(["h100", "a100", "cpu"])
    expect(page.locator(".tile")).to_have_count(16)
    expect(page.locator(".tile", has_text="h100-4")).to_contain_text("bert-large")
    expect(page.locator(".tile", has_text="cpu-3")).to_contain_text("lost")
    expect(page.locator(".type", has_text="a100").locator(".facts")).to_have_text("4 of 5 in use · 2 lent · 1 away")
    expect(page.locator(".figures")).to_contain_text("12 of 13")
    page.locator(".tile", has_text="h100-0").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("resnet50-imagenet")


def test_the_queue_says_why_each_job_waits(open_page: OpenPage) -> None:
    page = open_page("ann")
    waiting = page.locator(".waiting")
    expect(waiting.locator("li")).to_have_count(5)
    expect(waiting).to_contain_text("Needs 8 devices of h100 at once (gang); 6 exist.")


def test_the_timeline_shows_allocations_and_zooms(open_page: OpenPage) -> None:
    page = open_page("ann")
    lanes = page.locator(".timeline")
    expect(lanes.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"16 devices from .*held, by 8 jobs"))
    hour = lanes.locator("g.span").count()
    page.get_by_role("radio", name="6 h").check()
    expect(lanes.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"held, by 9 jobs"))
    assert lanes.locator("g.span").count() > hour
    page.get_by_role("radio", name="15 min").check()
    expect(lanes.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"held, by 5 jobs"))
    lanes.locator("g.span", has_text="bert-large").first.hover()
    expect(page.locator(".bubble")).to_contain_text("bert-large")
    lanes.get_by_text("As a table").click()
    expect(lanes.get_by_role("link", name="bert-large").first).to_have_attribute("href", "#/jobs/j-9c21")


def test_a_device_kept_through_a_change_of_the_plan_is_one_bar(open_page: OpenPage) -> None:
    page = open_page("ann")
    lanes = page.locator(".timeline")
    expect(lanes.locator("g.span", has_text="resnet50-imagenet")).to_have_count(5)  # one was given up


def test_news_arrives_without_a_reload(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann")
    expect(page.locator("#connection")).to_have_text("live")
    page.evaluate("window.sameDocument = true")
    served.desk.devices["cpu-2"] = served.desk.devices["cpu-2"].model_copy(update={"state": "free"})
    served.desk.tell("device-undrain", "cpu-2 is used again.")
    expect(page.locator(".events li").first).to_contain_text("cpu-2 is used again.")
    expect(page.locator(".tile", has_text="cpu-2")).to_contain_text("free")
    assert page.evaluate("window.sameDocument")


def test_a_burst_of_news_does_not_become_a_burst_of_requests(open_page: OpenPage, served: Served) -> None:
    page = open_page("root")
    expect(page.locator("#connection")).to_have_text("live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for i in range(300):
        served.desk.tell("device-added", f"News number {i}.")
    expect(page.locator(".events li").first).to_contain_text("News number 299.")
    assert len(asked) < 30


def test_after_a_restart_of_the_service_the_page_catches_up_by_itself(
    open_page: OpenPage, served: Served, complaints: Complaints
) -> None:
    complaints.allow(
        "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"
    )
    page = open_page("ann")
    expect(page.locator("#connection")).to_have_text("live")
    page.evaluate("window.sameDocument = true")
    served.stop()
    expect(page.locator("#connection")).to_have_text("reconnecting …")
    served.desk.tell("device-lost", "cpu-0 is lost: this happened while the page could not hear.")
    served.start()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator(".events li").first).to_contain_text("this happened while the page could not hear.")
    served.desk.tell("device-found", "cpu-0 is back.")
    expect(page.locator(".events li").first).to_contain_text("cpu-0 is back.")
    expect(page.locator(".problem")).to_have_count(0)
    assert page.evaluate("window.sameDocument")


def test_an_empty_cluster_says_what_to_do(open_page: OpenPage, served: Served) -> None:
    served.desk.devices.clear()
    served.desk.all.clear()
    served.desk.news.clear()
    page = open_page("ann")
    expect(page.locator(".types")).to_contain_text("easyscale up --devices v100:2,p100:1")
    expect(page.locator(".waiting")).to_contain_text("easyscale submit --ests 4 -- train.py")


def test_hundreds_of_devices_fit(open_page: OpenPage, served: Served) -> None:
    device = served.desk.devices["cpu-0"]
    for i in range(400):
        served.desk.devices[f"big-{i}"] = device.model_copy(
            update={"id": f"big-{i}", "kind": "big", "job": None, "state": "free"}
        )
    page = open_page("ann")
    expect(page.locator(".tile")).to_have_count(416)
    box = page.locator(".type", has_text="big").bounding_box()
    assert box is not None
    assert box["height"] < 700
