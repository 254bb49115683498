"""The worker process: `python -m easyscale.runtime.worker [--module] TARGET [ARGS...]` runs the user's script.

Ends with the script's own exit code; tells the launcher how it ended; never shows a traceback of ours.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from easyscale.core.errors import EasyScaleError, WorkerLostError
from easyscale.core.messages import Failed
from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec
from easyscale.runtime import api, origin
from easyscale.runtime.control import FAREWELL_SECONDS, line_of
from easyscale.runtime.failures import describe
from easyscale.runtime.journal import Journal
from easyscale.runtime.stops import Leaving

OUR_ERROR = 2


def main(arguments: list[str]) -> int:
    spec = WorkerSpec.from_json(os.environ[WORKER_VARIABLE])
    if spec.observation is not None and spec.observation.treatments:
        from easyscale.runtime.observe.evidence import apply_treatments

        apply_treatments(spec.observation.treatments)
    line_of(spec)  # heartbeats from the beginning
    try:
        run_target(arguments)
        engine = api.current_engine()
        if engine is not None:
            engine.finish()
        return 0
    except Leaving as leaving:
        return _leave(leaving.code)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException as problem:
        return _fail(spec, problem)


def run_target(arguments: list[str]) -> None:
    """`[--module] TARGET [ARGS...]`, as python itself would run it."""
    module = arguments[:1] == ["--module"]
    target, *rest = arguments[1:] if module else arguments
    origin.note(target, rest, module=module)
    if module:
        sys.argv = [target, *rest]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [target, *rest]
        sys.path.insert(0, str(Path(target).resolve().parent))
        runpy.run_path(target, run_name="__main__")


def _is_out_of_memory(problem: BaseException) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(problem, MemoryError) or (torch is not None and isinstance(problem, torch.OutOfMemoryError))


def _part() -> None:
    """Let the last words reach the master."""
    line = line_of(WorkerSpec.from_json(os.environ[WORKER_VARIABLE]))
    if line is not None:
        line.flush(FAREWELL_SECONDS)


def _leave(code: int) -> int:
    engine = api.current_engine()
    if engine is not None:
        engine.leave()
    return code


def _exit_code(leaving: SystemExit) -> int:
    """`sys.exit()` in the script: its code, and a clean end where it means success."""
    code = leaving.code
    if code is None or code == 0:
        engine = api.current_engine()
        if engine is not None:
            engine.finish()
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _fail(spec: WorkerSpec, problem: BaseException) -> int:
    engine = api.current_engine()
    step = 0
    if engine is not None:
        engine.failed = True
        step = engine.step
    ours, text = describe(problem)
    journal = engine.journal if engine is not None else Journal(spec, "warn", line_of(spec))
    journal.tell(
        Failed(
            worker=spec.worker, step=step, ours=ours, text=text, lost_peer=isinstance(problem, WorkerLostError),
            oom=_is_out_of_memory(problem), est=engine.est_of(problem) if engine is not None else None,
        )
    )  # fmt: skip
    _part()
    if spec.events_fd is None and spec.control is None:
        print(text, file=sys.stderr)
    if isinstance(problem, KeyboardInterrupt):
        return 130
    return OUR_ERROR if isinstance(problem, EasyScaleError) else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that wait for a lost peer must not keep the process: everything that matters is written by now.
    os._exit(code)
