"""The version of the installed package, without importing it: torch would come along."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    try:
        return version("easyscale-torch")
    except PackageNotFoundError:
        return "0+source"
