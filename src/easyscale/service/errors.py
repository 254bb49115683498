"""What a wish to the service can meet beside plain mistakes."""

from __future__ import annotations

from collections.abc import Sequence

from easyscale.core.errors import EasyScaleError


class NotFoundError(EasyScaleError):
    """There is no such job or device."""


class ConflictError(EasyScaleError):
    """It does not fit the present state: to pause a job that has ended."""


class ForbiddenError(EasyScaleError):
    """The person may not do that."""


class KeyUsedError(EasyScaleError):
    """A submission with this key was accepted before."""

    def __init__(self, jobs: Sequence[str]) -> None:
        super().__init__("This key was used before.", "a submission with it was accepted.", "use another key.")
        self.jobs = list(jobs)


class StoreError(EasyScaleError):
    """The store cannot be opened, read or written: a full disk, damage, a server that does not answer."""


class NotReadyError(EasyScaleError):
    """It cannot be done just now, through no fault of who asked: the disk is full, the store does not answer."""
