"""Keyboard, screen readers, contrast, phones, the dark. A small check of our own; no outside tool is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.dashboard.conftest import Complaints, OpenPage
from service.dashboard.served import Served

pytestmark = pytest.mark.slow
CHECK = (Path(__file__).parent / "accessibility.js").read_text()
PAGES = {
    "cluster": ("#/", ".tile"),
    "jobs": ("#/jobs", ".jobs tbody tr"),
    "running job": ("#/jobs/j-7f3a", ".plans g.span"),
    "finished job": ("#/jobs/j-0a11", ".finger code"),
    "what if": ("#/what-if", ".policy"),
    "devices": ("#/admin", "tbody tr"),
    "teams": ("#/admin/teams", "tbody tr"),
    "users": ("#/admin/users", "tbody tr"),
    "tokens": ("#/admin/tokens", "tbody tr"),
    "audit": ("#/admin/audit", "tbody tr"),
}


def visit(page: Page, served: Served, where: str, sign: str) -> None:
    page.goto(f"{served.url}/{where}")
    expect(page.locator(sign).first).to_be_visible()


def faults(page: Page) -> list[Any]:
    found = page.evaluate(CHECK)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_has_names_landmarks_one_heading_and_enough_contrast(
    open_page: OpenPage, served: Served, dark: bool
) -> None:
    page = open_page(None, dark=dark)
    expect(page.get_by_label("Token")).to_be_visible()
    assert faults(page) == []
    page = open_page("root", dark=dark)
    for name, (where, sign) in PAGES.items():
        visit(page, served, where, sign)
        for summary in page.locator("summary").all():
            summary.click()
        assert [(name, fault) for fault in faults(page)] == []


def test_the_check_finds_what_it_looks_for(open_page: OpenPage) -> None:
    page = open_page(None)
    page.evaluate("""() => {
      document.querySelector("#app").append(
        Object.assign(document.createElement("button"), {id: "nameless"}), document.createElement("input"),
        Object.assign(document.createElement("h1"), {textContent: "second"}),
        Object.assign(document.createElement("p"), {textContent: "hard to read", className: "pale"}));
      document.querySelector(".pale").style.color = "#bbb";
    }""")
    found = " ".join(map(str, faults(page)))
    for word in ("nameless", "input", "h1", "pale"):
        assert word in found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_wider_than_a_phone(open_page: OpenPage, served: Served, dark: bool) -> None:
    page = open_page("root", width=360, height=740, dark=dark)
    for name, (where, sign) in PAGES.items():
        visit(page, served, where, sign)
        assert (name, page.evaluate("document.documentElement.scrollWidth")) == (name, 360)
    visit(page, served, "#/jobs/j-7f3a", ".plans g.span")
    page.get_by_role("button", name="Scale").click()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


def test_the_dark_follows_the_system_and_the_switch_is_remembered(open_page: OpenPage, tmp_path: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page = open_page("ann", dark=True)
    expect(page.locator(".tile").first).to_be_visible()
    dark = page.evaluate(back)
    shot = page.screenshot(path=tmp_path / "dark.png")
    assert len(shot) > 10_000
    page.get_by_role("button", name="Use light colours").click()
    light = page.evaluate(back)
    assert light != dark
    page.reload()
    expect(page.get_by_role("button", name="Use dark colours")).to_be_visible()
    assert page.evaluate(back) == light
    assert open_page(None, dark=False).evaluate(back) == light


def test_a_job_is_cancelled_with_the_keyboard_alone(
    open_page: OpenPage, served: Served, complaints: Complaints
) -> None:
    page = open_page(None, "#/")
    keys = page.keyboard
    expect(page.get_by_label("Token")).to_be_focused()
    keys.type(served.tokens["ann"])
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
    tab_to(page, "Jobs")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.locator(".jobs tbody tr")).to_have_count(14)
    tab_to(page, "diffusion-256")
    assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("diffusion-256")
    tab_to(page, "Cancel")
    keys.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()  # Enter alone loses nothing
    for _ in range(4):  # the focus stays inside, but for the browser's own bar
        keys.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    assert served.desk.job("j-3e03").state == "queued"
    keys.press("Enter")
    tab_to(page, "Cancel the job")
    keys.press("Enter")
    expect(page.locator(".job-head .pill")).to_have_text("cancelled")
    assert served.desk.job("j-3e03").state == "cancelled"


def tab_to(page: Page, name: str, most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == name:
            return
    raise AssertionError(f"{name} was not reached with {most} presses of Tab")


def test_the_skip_link_leads_to_the_content_and_keeps_the_address(open_page: OpenPage) -> None:
    page = open_page("ann", "#/jobs")
    expect(page.locator(".jobs tbody tr")).to_have_count(14)
    page.evaluate("document.activeElement.blur()")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#/jobs")
    expect(page.locator(".jobs tbody tr")).to_have_count(14)


def test_a_change_of_state_is_announced_but_progress_is_not(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", "#/jobs/j-7f3a")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.evaluate("""() => {
      window.told = [];
      new MutationObserver(() => window.told.push(document.querySelector("#announcer").textContent))
        .observe(document.querySelector("#announcer"), {childList: true, characterData: true, subtree: true});
    }""")
    served.desk.change("j-7f3a", step=2500)
    served.desk.tell("job-progressed", "Step 2,500.", "j-7f3a")
    expect(page.locator(".figures")).to_contain_text("2,500")
    served.desk.change("j-7f3a", state="stopping")
    served.desk.tell("job-told", "It stops.", "j-7f3a")
    expect(page.locator("#announcer")).to_have_text("resnet50-imagenet is stopping now.")
    assert [text for text in page.evaluate("window.told") if text] == ["resnet50-imagenet is stopping now."]


def test_nothing_moves_for_those_who_asked_for_stillness(open_page: OpenPage) -> None:
    page = open_page("ann")
    expect(page.locator(".track .bar").first).to_be_attached()
    duration = "getComputedStyle(document.querySelector('.track .bar')).transitionDuration"
    assert page.evaluate(duration) != "0s"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(duration) == "0s"
