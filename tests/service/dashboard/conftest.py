"""Real Chromium, Debian's, against the real HTTP app. A page that writes an error to the console fails its test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from service.dashboard.served import Served

CHROMIUM = Path("/usr/bin/chromium")
SECONDS = 15_000  # milliseconds that something may take to appear; machines differ
expect.set_options(timeout=SECONDS)


def install_chromium() -> None:
    """From Debian. Without it these tests fail: a dashboard that was not looked at is not tested."""
    if CHROMIUM.exists():
        return
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    install = ["apt-get", *wait, "install", "-y", "--no-install-recommends", "chromium"]
    if subprocess.run(install, capture_output=True, check=False).returncode != 0:
        subprocess.run(["apt-get", *wait, "update"], capture_output=True, check=False)
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"chromium could not be installed with apt-get:\n{done.stderr[-2000:]}"
    assert CHROMIUM.exists(), f"the package chromium is installed, but there is no {CHROMIUM}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    install_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    served.start()
    yield served
    served.stop()


class Complaints:
    """What pages wrote to the console as an error. `allow` names parts of such lines that the test brings about."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allowed: list[str] = []

    def allow(self, *parts: str) -> None:
        self.allowed += parts

    def rest(self) -> list[str]:
        return [line for line in self.lines if not any(part in line for part in self.allowed)]


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    complaints = Complaints()
    yield complaints
    assert complaints.rest() == []


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, served: Served, complaints: Complaints) -> Iterator[OpenPage]:
    """`open_page("ann", "#/jobs", width=360)`: a page of its own, logged in unless the user is None."""
    contexts = []

    def open_one(
        user: str | None, where: str = "#/", *, width: int = 1440, height: int = 900, dark: bool = False
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        context.set_default_timeout(SECONDS)
        page = context.new_page()
        page.on("console", lambda m: complaints.lines.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.lines.append(str(error)))
        page.goto(f"{served.url}/{where}")
        if user is not None:
            page.get_by_label("Token").fill(served.tokens[user])
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        return page

    yield open_one
    for context in contexts:
        context.close()
