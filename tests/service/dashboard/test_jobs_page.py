"""The list of jobs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from service.dashboard.conftest import OpenPage
from service.dashboard.scenery import add_many
from service.dashboard.served import Served

pytestmark = pytest.mark.slow

TIMED = """async (act) => {
  const rows = () => document.querySelectorAll(".jobs tbody tr").length;
  const total = document.querySelector("#total");
  const before = total.textContent;
  const start = performance.now();
  const frame = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)));
  if (act === "all") {
    const size = [...document.querySelectorAll("select")].at(-1);
    size.value = "1000";
    size.dispatchEvent(new Event("change"));
  } else {
    const search = document.querySelector("input[type=search]");
    search.value = act;
    search.dispatchEvent(new Event("input"));
  }
  while (total.textContent === before && performance.now() - start < 15000) await frame();
  await frame();
  return [performance.now() - start, rows()];
}"""


def rows(page: Page) -> list[str]:
    return page.locator(".jobs tbody tr td.name a").all_inner_texts()


def test_every_waiting_job_says_why(open_page: OpenPage) -> None:
    page = open_page("ann", "#/jobs?state=queued")
    expect(page.locator(".jobs tbody tr")).to_have_count(4)
    expect(page.locator(".jobs")).to_contain_text("Team vision is at its quota of 5 devices")
    for why in page.locator(".jobs .why").all():
        assert why.inner_text()


def test_jobs_are_filtered_sorted_and_opened_and_the_address_keeps_the_filter(open_page: OpenPage) -> None:
    page = open_page("ann", "#/jobs")
    expect(page.locator("#total")).to_contain_text("of 14 jobs")
    page.get_by_label("Search").fill("resnet")
    expect(page.locator("#total")).to_contain_text("of 2 jobs")
    assert sorted(rows(page)) == ["resnet18-cifar", "resnet50-imagenet"]
    page.get_by_label("State").select_option("running")
    expect(page.locator("#total")).to_contain_text("of 1 job")
    page.reload()
    expect(page.get_by_label("Search")).to_have_value("resnet")
    expect(page.locator("#total")).to_contain_text("of 1 job")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Team").fill("speech")
    expect(page.locator("#total")).to_contain_text("of 2 jobs")
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Job", exact=True).click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text(re.compile("Job"))
    assert rows(page) == sorted(rows(page))
    page.get_by_role("link", name="resnet50-imagenet").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("resnet50-imagenet")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_nothing_found_says_what_to_do(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", "#/jobs?text=nothing-has-this-name")
    expect(page.locator(".empty")).to_contain_text("No job matches.")
    served.desk.all.clear()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".empty")).to_contain_text("easyscale submit")


def test_a_new_job_appears_by_itself(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", "#/jobs")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.evaluate("window.sameDocument = true")
    job = served.desk.job("j-3e02")
    served.desk.all["j-new"] = job.model_copy(update={"id": "j-new", "name": "brand-new"})
    served.desk.tell("job-submitted", "ann submitted brand-new.", "j-new")
    expect(page.get_by_role("link", name="brand-new")).to_be_visible()
    assert page.evaluate("window.sameDocument")


def test_an_update_leaves_the_focus_and_the_other_rows_alone(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", "#/jobs")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.get_by_role("link", name="diffusion-256").focus()
    page.evaluate("window.row = document.activeElement.closest('tr')")
    served.desk.change("j-3e01", state="starting", waits=None)
    served.desk.tell("job-starting", "llama-7b-finetune starts.", "j-3e02")
    expect(page.locator("tr", has_text="j-3e01").locator(".pill")).to_have_text("starting")
    expect(page.get_by_role("link", name="diffusion-256")).to_be_focused()
    assert page.evaluate("window.row.isConnected")


def test_arrow_keys_go_from_row_to_row(open_page: OpenPage) -> None:
    page = open_page("ann", "#/jobs?order=name")
    expect(page.locator(".jobs tbody tr")).to_have_count(14)
    links = page.locator(".jobs tbody tr td.name a")
    links.nth(0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(links.nth(2)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(links.nth(1)).to_be_focused()


def test_a_thousand_jobs_are_shown_and_filtered(open_page: OpenPage, served: Served) -> None:
    """The times are told, not asserted: machines differ."""
    add_many(served.desk, 1200)
    page = open_page("ann", "#/jobs")
    expect(page.locator("#total")).to_contain_text("1–100 of 1,214 jobs")
    shown, count = page.evaluate(TIMED, "all")
    assert count == 1000
    expect(page.locator("#total")).to_contain_text("1–1,000 of 1,214 jobs")
    narrowed, left = page.evaluate(TIMED, "resnet")
    assert 100 < left < 400
    back, again = page.evaluate(TIMED, "")
    assert again == 1000
    print(f"1,000 rows after {shown:.0f} ms, {left} of them after {narrowed:.0f} ms, all again after {back:.0f} ms;")
    print("the last two hold the pause of 200 ms after typing.")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#total")).to_contain_text("1,001–1,214 of 1,214 jobs")
    assert len(rows(page)) == 214
