"""Every exception that EasyScale raises on purpose.

    EasyScaleError
    |-- UsageError                a call, flag or script that cannot work as written
    |   |-- PlanError             workers, splits and schedules that do not fit the ESTs
    |   |-- LoopError             the training loop breaks the rhythm of local steps
    |   `-- UnsupportedError      a feature outside the promise (SyncBatchNorm, sparse gradients, ...)
    |-- PromiseError              continuing would silently change the bits
    |   |-- RecordMismatchError   level, versions, device or threads differ from the job's record
    |   |-- NondeterministicError an operator without a deterministic form
    |   |-- UnusedParameterError  some parameters got no gradient
    |   `-- LoaderLengthError     ESTs ran out of data at different steps
    |-- CheckpointError           missing, damaged, or of another job
    |-- NonFiniteError            a logged loss is NaN or infinite and the user asked to stop
    `-- WorkerLostError           a peer stopped answering

A message always has three parts: what happened, why, what to do now. `message()` writes them.
"""

from __future__ import annotations


def message(what: str, why: str, now: str) -> str:
    """Join the three parts that each of our messages has."""
    return f"{what}\n  why: {why}\n  now: {now}"


class EasyScaleError(Exception):
    """Base of all. Carries the three parts so that a program can show them apart."""

    def __init__(self, what: str, why: str = "", now: str = "") -> None:
        self.what, self.why, self.now = what, why, now
        super().__init__(message(what, why, now) if why or now else what)


class UsageError(EasyScaleError):
    """A call, flag or script that cannot work as written."""


class PlanError(UsageError):
    """Workers, splits or schedules that do not fit the ESTs."""


class LoopError(UsageError):
    """The training loop breaks the rhythm of local steps."""


class UnsupportedError(UsageError):
    """A feature that is outside the promise."""


class PromiseError(EasyScaleError):
    """Continuing would silently change the bits."""


class RecordMismatchError(PromiseError):
    """The job's numerics record and this machine differ in a way the level forbids."""


class NondeterministicError(PromiseError):
    """An operator without a deterministic form."""


class UnusedParameterError(PromiseError):
    """Some parameters got no gradient although `find_unused_parameters` is off."""


class LoaderLengthError(PromiseError):
    """ESTs ran out of data at different steps."""


class CheckpointError(EasyScaleError):
    """A checkpoint is missing, damaged, or of another job."""


class NonFiniteError(EasyScaleError):
    """A logged loss is NaN or infinite and the user asked to stop."""


class WorkerLostError(EasyScaleError):
    """A peer stopped answering. `timed_out`: it said nothing, its connection did not break."""

    timed_out = False
