"""How a failing script is shown: the user's traceback whole, ours never, and what to do where the cause is known."""

from __future__ import annotations

import re
import sys
import traceback
from types import TracebackType
from typing import Any

from easyscale.core.errors import EasyScaleError, NondeterministicError, UnsupportedError

# CPython prints this many frames at most for a RecursionError; the same limit keeps messages readable.
_OURS = re.compile(r"[\\/]easyscale[\\/](runtime|numerics|core)[\\/]|<frozen runpy>")


def describe(problem: BaseException) -> tuple[bool, str]:
    """(is it ours, text to show). Errors of ours have no traceback; others keep the user's frames."""
    if isinstance(problem, EasyScaleError):
        return True, f"{type(problem).__name__}: {problem}{_where(problem)}"
    known = explain(problem)
    frames = traceback.TracebackException.from_exception(problem)
    _leave_out_ours(frames)
    text = "".join(frames.format()).rstrip()
    return False, text if known is None else f"{text}\n\n{type(known).__name__}: {known}"


def explain(problem: BaseException) -> EasyScaleError | None:
    """A known cause behind an exception that torch raised."""
    text = str(problem)
    found = re.search(r"(\S+) does not have a deterministic implementation", text)
    if found:
        module = _module_of(problem)
        where = f" in module {module}" if module else ""
        return NondeterministicError(
            f"The operator {found.group(1)}{where} has no deterministic form.",
            "it would give other bits in each run, so levels D0 and D1 refuse it.",
            "replace it (torch.use_deterministic_algorithms lists alternatives), or run that part on the CPU.",
        )
    if isinstance(problem, ValueError) and "is read-only" in text and _is_at_d2():
        return UnsupportedError(
            "A parameter, a gradient or a buffer of the model was written to through NumPy.",
            "level D2 holds for what torch's operators compute; NumPy's may differ between device types, and go round "
            "them.",
            "write to it with torch: `with torch.no_grad(): p.copy_(torch.from_numpy(array))`.",
        )
    if isinstance(problem, AssertionError) and "No inf checks were recorded" in text:
        return EasyScaleError(
            "A GradScaler found no gradients in this local step.",
            "only the last EST of a worker has gradients; a scaler that knows of ESTs waits for it.",
            "pass the scaler to es.prepare() together with the model and the optimizer.",
        )
    return None


def _is_at_d2() -> bool:
    from easyscale.runtime.api import current_engine

    engine = current_engine()
    return engine is not None and engine.guard is not None


def install_hook() -> None:
    """For scripts without the launcher: the same words on stderr."""
    before = sys.excepthook

    def show(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
        from easyscale.runtime.api import current_engine

        engine = current_engine()
        if engine is not None:
            engine.failed = True
        if isinstance(problem, EasyScaleError) or explain(problem) is not None:
            print(describe(problem)[1], file=sys.stderr)
        else:
            before(kind, problem, trace)

    sys.excepthook = show


def _leave_out_ours(frames: traceback.TracebackException) -> None:
    """Drop our frames and the launcher's from the text, not from the truth: the exception is the user's."""
    kept = [frame for frame in frames.stack if not _OURS.search(frame.filename)]
    if kept:
        frames.stack = traceback.StackSummary.from_list(kept)
    for linked in (frames.__cause__, frames.__context__):
        if linked is not None:
            _leave_out_ours(linked)


def _where(problem: BaseException) -> str:
    """The user's line that led to an error of ours."""
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if not _OURS.search(f.filename)]
    frames = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")]
    return f"\n  at:  {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""


def _module_of(problem: BaseException) -> str | None:
    """The innermost module of the model whose forward was running, from the frames of the traceback."""
    import torch

    found: Any = None
    trace = problem.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            found = owner
        trace = trace.tb_next
    if found is None:
        return None
    from easyscale.runtime.api import current_engine

    engine = current_engine()
    model = engine.model if engine is not None else None
    names = {id(module): name for name, module in model.named_modules()} if model is not None else {}
    return f"{names.get(id(found)) or '(the model itself)'} ({type(found).__name__})"
