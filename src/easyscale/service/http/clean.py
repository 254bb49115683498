"""Text from outside, made fit to be shown or written down."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"est_[A-Za-z0-9_\-]{4,}")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str, most: int = 2000) -> str:
    """Without control characters (they are written as escapes), without tokens, not longer than `most`."""
    cut = text if len(text) <= most else text[:most] + "..."
    return _UNFIT.sub(lambda m: m.group().encode("unicode_escape").decode(), hide_tokens(cut))


def hide_tokens(text: str) -> str:
    return _TOKEN.sub("est_***", text)
