"""Who comes in, and who is sent back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from service.dashboard.conftest import Complaints, OpenPage
from service.dashboard.served import Served

pytestmark = pytest.mark.slow


def test_a_wrong_token_is_refused_with_three_parts_and_the_right_one_lets_in(
    open_page: OpenPage, served: Served, complaints: Complaints
) -> None:
    complaints.allow("401")
    page = open_page(None)
    field = page.get_by_label("Token")
    expect(field).to_be_focused()
    field.fill("est_wrong")
    page.get_by_role("button", name="Log in").click()
    problem = page.locator(".problem")
    expect(problem.locator(".what")).not_to_be_empty()
    expect(problem).to_contain_text("Why:")
    expect(problem).to_contain_text("Now:")
    field.fill(served.tokens["ann"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
    expect(page.locator(".top .who")).to_contain_text("ann")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")


def test_no_script_can_read_the_token_after_the_login(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann")
    assert page.evaluate("document.cookie") == ""
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert served.tokens["ann"] not in stored
    cookie = page.context.cookies()[0]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"


def test_logging_out_ends_it(open_page: OpenPage) -> None:
    page = open_page("ann")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []


def test_a_token_that_is_revoked_meanwhile_leads_back_to_the_login(
    open_page: OpenPage, served: Served, complaints: Complaints
) -> None:
    complaints.allow("401")
    page = open_page("ann")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    for token in served.people.tokens():
        served.people.revoke(token.id)
    served.desk.tell("device-added", "Something happens, so the page asks.")
    expect(page.locator(".problem .what")).to_have_text("You are logged out.")
    expect(page.get_by_label("Token")).to_be_focused()
