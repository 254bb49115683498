"""Leaving the script on purpose: after a checkpoint on a signal, or to make room for the next plan."""

from __future__ import annotations


class Leaving(SystemExit):
    """Passes through the user's `except Exception`; `finally` blocks run. Carries the exit code."""

    code: int
