"""The files themselves: nothing from outside, and nothing that reads text as HTML."""

from __future__ import annotations

import re
from pathlib import Path

import easyscale.service
from easyscale.scheduler.policies import POLICIES

PAGE = Path(easyscale.service.__file__).parent / "dashboard"
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]


def test_no_script_reads_text_as_html_or_code() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc"
        r"|\beval\(|new Function|setAttribute\(\"(style|on)"
    )
    assert SCRIPTS
    assert [(p.name, m.group()) for p in SCRIPTS for m in forbidden.finditer(p.read_text())] == []


def test_nothing_comes_from_another_host() -> None:
    for path in FILES:
        hosts = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"']*", path.read_text()))
        assert hosts <= {"http://www.w3.org/2000/svg"}, path


def test_the_page_has_no_inline_script_or_style() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script>", html)


def test_every_import_names_a_file_that_is_there() -> None:
    for path in SCRIPTS:
        for name in re.findall(r"from \"/static/([^\"]+)\"", path.read_text()):
            assert (PAGE / name).is_file(), f"{path.name} imports {name}"


def test_files_are_short() -> None:
    assert [path.name for path in FILES if len(path.read_text().splitlines()) > 400] == []


def test_the_comparison_offers_every_policy_that_there_is() -> None:
    text = (PAGE / "views" / "what-if.js").read_text()
    table = text[text.index("export const POLICIES") : text.index("];")]
    assert set(re.findall(r"^  \[\"([a-z-]+)\"", table, re.MULTILINE)) == set(POLICIES)
