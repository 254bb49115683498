"""Comparing policies, and the pages for admins."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from service.dashboard.conftest import Complaints, OpenPage
from service.dashboard.served import Served

pytestmark = pytest.mark.slow


def go_to(page: Page, name: str) -> None:
    """To another page for admins. Until it is there, the one before it has fields with the same names."""
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Admin: {name.lower()}")


def test_policies_are_compared_in_bars_and_a_table(open_page: OpenPage) -> None:
    page = open_page("ann", "#/what-if")
    page.get_by_label("gavel").check()
    page.get_by_role("button", name="Run the comparison").click()
    expect(page.locator(".result h2")).to_have_text("9 jobs under 4 policies")
    expect(page.locator(".bars")).to_have_count(3)
    rows = page.locator(".result table tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("easyscale")
    expect(rows.first).to_contain_text("in use")


def test_no_policy_at_all_is_not_sent(open_page: OpenPage) -> None:
    page = open_page("ann", "#/what-if")
    for box in page.get_by_role("checkbox").all():
        box.uncheck()
    page.get_by_role("button", name="Run the comparison").click()
    expect(page.locator(".problem")).to_contain_text("No policy is chosen.")


def test_only_admins_have_the_admin_page(open_page: OpenPage) -> None:
    page = open_page("ann", "#/admin")
    expect(page.get_by_role("link", name="Admin")).to_have_count(0)
    expect(page.locator(".problem")).to_contain_text("This page is for admins.")


def test_a_device_is_drained_put_back_and_called_back(open_page: OpenPage, served: Served) -> None:
    page = open_page("root", "#/admin")
    page.get_by_role("button", name="Drain a100-4").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    row = page.locator("tr", has_text="a100-4")
    expect(row.locator(".pill")).to_have_text("drained")
    page.get_by_role("button", name="Put back a100-4").click()
    page.get_by_role("dialog").get_by_role("button", name="Put back").click()
    expect(row.locator(".pill")).to_have_text("free")
    page.get_by_role("textbox", name="Devices").fill("a100-3, a100-4")
    page.get_by_label("Within, seconds").fill("2")
    page.get_by_role("button", name="Call back for serving").click()
    expect(row.locator(".pill")).to_have_text("leaving")
    assert [call[:2] for call in served.desk.calls] == [
        ("device-drain", "a100-4"),
        ("device-undrain", "a100-4"),
        ("device-called", "a100-3"),
        ("device-called", "a100-4"),
    ]


def test_a_new_team_user_and_token_and_the_token_is_shown_once(open_page: OpenPage, served: Served) -> None:
    page = open_page("root", "#/admin/teams")
    page.get_by_label("Name").fill("audio")
    page.get_by_label("Quota, devices").fill("4")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("tr", has_text="audio")).to_contain_text("4 devices")
    go_to(page, "Users")
    page.get_by_label("Name").fill("eve")
    page.get_by_label("Team").fill("audio")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("tr", has_text="eve")).to_contain_text("viewer")
    go_to(page, "Tokens")
    page.get_by_label("User").fill("eve")
    page.get_by_label("Note").fill("laptop")
    page.get_by_role("button", name="Make").click()
    dialog = page.get_by_role("dialog")
    token = dialog.locator("code").inner_text()
    person = served.people.authenticate(token)
    assert person is not None
    assert person.user == "eve"
    dialog.get_by_role("button", name="I have kept it").click()
    row = page.locator("tr", has_text="laptop")
    expect(row).to_contain_text("eve")
    assert token not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    assert served.people.authenticate(token) is None
    go_to(page, "Audit")
    expect(page.locator("table")).to_contain_text("revoke")


def test_a_refused_change_says_why_at_its_form(open_page: OpenPage, complaints: Complaints) -> None:
    complaints.allow("404")
    page = open_page("root", "#/admin/users")
    page.get_by_label("Name").fill("eve")
    page.get_by_label("Team").fill("nobody")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("form .problem")).to_contain_text("There is no team nobody.")
