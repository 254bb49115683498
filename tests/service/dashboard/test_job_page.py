"""A job's page: what it shows, and what its buttons do."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from easyscale.service.models import PlanView
from service.dashboard.conftest import Complaints, OpenPage
from service.dashboard.scenery import seats
from service.dashboard.served import Served

pytestmark = pytest.mark.slow

JOB = "#/jobs/j-7f3a"


def press(page: Page, name: str) -> None:
    page.get_by_role("group", name="Change the job").get_by_role("button", name=name).click()


def test_curves_are_drawn_and_can_be_read_as_tables(open_page: OpenPage) -> None:
    page = open_page("ann", JOB)
    expect(page.locator(".curves")).to_have_count(3)
    loss = page.locator(".curves", has_text="Loss")
    assert len(loss.locator("path.curve").get_attribute("d") or "") > 1000
    expect(loss.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"Loss over 201 points from step 0 to 2,480: first 2\.")
    )
    expect(page.locator(".curves", has_text="Throughput")).to_contain_text("steps/s")
    assert loss.locator("line.switch").count() == 4  # one for each change of the plan
    loss.get_by_text("As a table").click()
    expect(loss.locator("tbody tr").first).to_contain_text("0")
    assert loss.locator("tbody tr").count() > 20
    page.get_by_role("radio", name="by time").check()
    page.get_by_label("log scale").check()
    expect(loss.locator("path.curve")).to_be_visible()


def test_the_plan_history_shows_which_ests_ran_on_which_device(open_page: OpenPage) -> None:
    page = open_page("ann", JOB)
    plans = page.locator(".plans")
    expect(plans.locator("g.span")).to_have_count(1 + 2 + 4 + 3 + 4)
    expect(plans.get_by_role("img")).to_have_attribute(
        "aria-label",
        re.compile("8 ESTs, 5 plans.*ESTs 0–1 on h100-0, ESTs 2–3 on h100-1, ESTs 4–5 on h100-2, ESTs 6–7"),
    )
    plans.locator("g.span").first.hover()
    expect(page.locator(".bubble")).to_contain_text("ESTs 0–7 on h100-0")
    plans.get_by_text("As a table").click()
    expect(plans.locator("tbody tr")).to_have_count(5)
    expect(plans.locator("tbody tr").last).to_contain_text("ESTs 0–7 on h100-0")


def test_proposals_pauses_and_events_are_there_in_words(open_page: OpenPage) -> None:
    page = open_page("ann", JOB)
    grow = page.locator(".proposals")
    expect(grow).to_contain_text("5 × h100")
    expect(grow).to_contain_text("× 1.22")
    expect(grow).to_contain_text("No h100 is free; bert-large gains more.")
    expect(grow).to_contain_text("estimate")
    expect(page.locator(".pauses")).to_contain_text("4 switches: 630 ms in all")
    expect(page.locator(".events li").first).to_contain_text("now runs on h100-0, h100-1, h100-2, h100-3.")


def test_progress_and_a_new_plan_arrive_without_a_reload(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", JOB)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.evaluate("window.sameDocument = true")
    desk = served.desk
    job = desk.job("j-7f3a")
    new = PlanView(time=desk.now(), step=2600, seats=seats(["h100-0", "h100-1"], 8))
    desk.change(
        "j-7f3a", step=2600, loss=0.1234, plans=[*job.plans, new], held=["h100-0", "h100-1"], devices={"h100": 2}
    )
    last = desk.points["j-7f3a"][-1]
    point = last.model_copy(update={"step": 2600, "time": desk.now(), "values": {**last.values, "loss": 0.1234}})
    desk.points["j-7f3a"] = [*desk.points["j-7f3a"][1:], point]
    desk.tell("job-progressed", "Step 2,600.", "j-7f3a")
    desk.tell("job-planned", "It gave h100-2 and h100-3 back.", "j-7f3a")
    expect(page.locator(".events li").first).to_contain_text("It gave h100-2 and h100-3 back.")
    expect(page.locator(".figures")).to_contain_text("2,600")
    expect(page.locator(".figures")).to_contain_text("2 × h100")
    expect(page.locator(".curves", has_text="Loss").locator(".latest")).to_have_text("0.1234")
    expect(page.locator(".plans g.span")).to_have_count(16)
    expect(page.locator(".events")).not_to_contain_text("Step 2,600.")  # too many to read, unless asked for
    page.get_by_label("with progress").check()
    expect(page.locator(".events")).to_contain_text("Step 2,600.")
    assert page.evaluate("window.sameDocument")


def test_cancelling_asks_first(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", JOB)
    press(page, "Cancel")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel resnet50-imagenet?")
    dialog.get_by_role("button", name="Keep it").click()
    expect(dialog).to_have_count(0)
    assert served.desk.job("j-7f3a").state == "running"
    press(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-head .pill")).to_have_text("cancelled")
    assert served.desk.job("j-7f3a").state == "cancelled"
    for name in ("Scale", "Pause", "Cancel"):
        expect(page.get_by_role("group", name="Change the job").get_by_role("button", name=name)).to_be_disabled()


def test_new_limits_are_sent_and_shown(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", JOB)
    press(page, "Scale")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("At least").fill("2")
    dialog.get_by_label("At most").fill("6")
    dialog.get_by_role("button", name="Scale").click()
    expect(page.locator(".figures")).to_contain_text("2–6 for 8 ESTs")
    spec = served.desk.job("j-7f3a").spec
    assert (spec.min_workers, spec.max_workers) == (2, 6)


def test_a_job_is_paused_and_resumed(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", "#/jobs/j-3e03")
    press(page, "Pause")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".job-head .pill")).to_have_text("paused")
    press(page, "Resume")
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.locator(".job-head .pill")).to_have_text("queued")
    assert [call[0] for call in served.desk.calls] == ["job-pause", "job-resume"]


def test_a_refusal_is_shown_in_the_dialog_with_its_three_parts(
    open_page: OpenPage, served: Served, complaints: Complaints
) -> None:
    complaints.allow("409")
    page = open_page("ann", JOB)
    press(page, "Pause")
    served.desk.change("j-7f3a", state="finished")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Pause").click()
    expect(dialog.locator(".problem")).to_contain_text("cannot pause")
    expect(dialog.locator(".problem")).to_contain_text("Why: it has finished.")
    expect(dialog.locator(".problem")).to_contain_text("Now: submit it again.")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_viewer_sees_the_job_but_no_button_works(open_page: OpenPage) -> None:
    page = open_page("vic", JOB)
    group = page.get_by_role("group", name="Change the job")
    expect(group).to_contain_text("Your role, viewer, may look but not change.")
    buttons = group.get_by_role("button")
    expect(buttons).to_have_count(3)
    for button in buttons.all():
        expect(button).to_be_disabled()


def test_another_teams_job_is_refused_with_three_parts_while_its_row_is_seen(
    open_page: OpenPage, complaints: Complaints
) -> None:
    complaints.allow("403")
    page = open_page("bob", "#/jobs?text=resnet50")
    page.get_by_role("link", name="resnet50-imagenet").click()
    problem = page.locator(".problem")
    expect(problem.locator(".what")).to_have_text("You may not do that.")
    expect(problem).to_contain_text("Why: j-7f3a is a job of the team vision, you are in speech.")
    expect(problem).to_contain_text("Now: ask vision or an admin.")
    expect(page.get_by_role("group", name="Change the job")).to_be_hidden()


def test_an_unknown_job_says_so(open_page: OpenPage, complaints: Complaints) -> None:
    complaints.allow("404")
    page = open_page("ann", "#/jobs/j-none")
    expect(page.locator(".problem")).to_contain_text("There is no job j-none.")


def test_a_fingerprint_can_be_copied(open_page: OpenPage) -> None:
    page = open_page("ann", "#/jobs/j-0a11")
    page.locator(".finger").get_by_role("button", name="Copy").click()
    expect(page.locator(".finger")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "9f2c" * 16


def test_output_is_text_and_never_html(open_page: OpenPage, served: Served) -> None:
    evil = "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    served.desk.print("j-7f3a", 0, "out", f"{evil}\n\x1b[31mred\x1b[0m\n")
    served.desk.change("j-7f3a", error=evil)
    served.desk.tell("job-told", evil, "j-7f3a")
    page = open_page("ann", JOB)
    log = page.get_by_role("log")
    expect(log).to_contain_text(evil)
    expect(log).to_contain_text("\nred\n")
    expect(page.locator(".banner")).to_have_text(evil)
    expect(page.locator(".events li").first).to_contain_text(evil)
    assert page.locator("pre *").count() == 0
    assert page.evaluate("window.broken") is None


def test_output_is_followed_by_worker_and_stream(open_page: OpenPage, served: Served) -> None:
    page = open_page("ann", JOB)
    log = page.get_by_role("log")
    expect(log).to_contain_text("epoch 2 step 2479")
    served.desk.print("j-7f3a", 0, "out", "and one more line\n")
    expect(log).to_contain_text("and one more line")
    page.get_by_label("Which output").select_option(label="worker 0, stderr")
    expect(log).to_have_text("UserWarning: a loader without workers\n")
    page.get_by_label("Which output").select_option(label="worker 1, stdout")
    expect(log).to_contain_text("worker 1 step 2479")


def test_long_output_begins_at_its_end_and_the_rest_can_be_fetched(open_page: OpenPage, served: Served) -> None:
    served.desk.print("j-1b40", 0, "out", "".join(f"line {i}\n" for i in range(20_000)))
    page = open_page("ann", "#/jobs/j-1b40")
    log = page.get_by_role("log")
    expect(log).to_contain_text("line 19999")
    assert "line 100\n" not in log.inner_text()
    earlier = page.get_by_role("button", name="Earlier output")
    while not log.inner_text().startswith("line 0\n"):
        before = len(log.inner_text())
        earlier.click()
        page.wait_for_function("(n) => document.querySelector('pre.log').innerText.length > n", arg=before)
    lines = log.inner_text().splitlines()
    assert lines == [f"line {i}" for i in range(20_000)]
    expect(earlier).to_be_hidden()
