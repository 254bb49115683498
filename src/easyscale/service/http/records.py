"""A page of those records that a person may see."""

from __future__ import annotations

from easyscale.core.errors import EasyScaleError
from easyscale.service.http.parts import Parts
from easyscale.service.models import RecordPage, RecordView
from easyscale.service.ports import Person

LOOKED_AT = 20_000  # records at most for one page, however few of them are shown
STEP = 1000


def visible(parts: Parts, who: Person, after: int, limit: int, newest: bool) -> RecordPage:
    """`next` says where to ask on; a page may be short, or empty, before the end."""
    desk = parts.desk
    if who.role == "admin":
        page = desk.records(after, limit, None, newest)
        return _page(page.records, page.last, page.records[-1].seq if page.records else after)
    if newest:
        page = desk.records(0, min(LOOKED_AT, limit * 20), None, True)
        shown = [record for record in page.records if _sees(parts, who, record)][-limit:]
        return _page(shown, page.last, page.last)
    shown, looked, last = [], 0, after
    while looked < LOOKED_AT:
        page = desk.records(after, STEP)
        last = page.last
        for record in page.records:
            after = record.seq
            if _sees(parts, who, record):
                shown.append(record)
                if len(shown) == limit:
                    return _page(shown, last, after)
        looked += len(page.records)
        if len(page.records) < STEP:
            break
    return _page(shown, last, after)


def _page(records: list[RecordView], last: int, next: int) -> RecordPage:
    return RecordPage(records=records, last=last, next=next)


def _sees(parts: Parts, who: Person, record: RecordView) -> bool:
    try:
        return parts.rights.sees(who, record)
    except EasyScaleError:
        return False  # of a job that nobody knows
