"""Make the pictures of docs/img again: `PYTHONPATH=src:tests python tests/service/dashboard/screenshots.py [folder]`.

The cluster in them is the one of `scenery.py`. Needs Debian's chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from service.dashboard.conftest import CHROMIUM, install_chromium
from service.dashboard.served import Served

FOLDER = Path(__file__).parents[3] / "docs" / "img"
LARGEST = 300_000  # bytes of a picture


def log_in(browser: Browser, served: Served, width: int, height: int, dark: bool) -> Page:
    scheme = "dark" if dark else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(served.url)
    page.get_by_label("Token").fill(served.tokens["root"])
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#connection")).to_have_text("live")
    return page


def take(page: Page, served: Served, where: str, sign: str, path: Path, height: int | None = None) -> None:
    page.goto(f"{served.url}/{where}")
    if where == "#/what-if":
        page.get_by_role("button", name="Run the comparison").click()
    expect(page.locator(sign).first).to_be_visible()
    page.mouse.move(0, 0)
    page.wait_for_timeout(800)  # the last pieces arrive apart
    width = page.viewport_size["width"] if page.viewport_size else 0
    clip = {"x": 0, "y": 0, "width": width, "height": height} if height else None
    page.screenshot(path=path, full_page=True, clip=clip)  # type: ignore[arg-type]
    assert path.stat().st_size < LARGEST, f"{path} is too large"
    print(path, path.stat().st_size)


def main(folder: Path) -> None:
    install_chromium()
    served = Served()
    served.start()
    lanes, bricks = ".timeline g.span", ".plans g.span"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        light = log_in(browser, served, 1280, 800, dark=False)
        take(light, served, "#/", lanes, folder / "dashboard-cluster.png")
        take(light, served, "#/jobs", ".jobs tbody tr", folder / "dashboard-jobs.png")
        take(light, served, "#/what-if", ".bars", folder / "dashboard-what-if.png")
        dark = log_in(browser, served, 1280, 800, dark=True)
        take(dark, served, "#/jobs/j-7f3a", bricks, folder / "dashboard-job-dark.png", height=1240)
        phone = log_in(browser, served, 360, 760, dark=False)
        take(phone, served, "#/", lanes, folder / "dashboard-phone.png", height=1480)
        browser.close()
    served.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
