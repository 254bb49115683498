"""Runs a command that dies with its parent: `python leash.py PARENT_PID COMMAND...`.

Started as a file, not as a module, so that it costs some ten milliseconds and imports nothing of
ours. It asks the kernel to send SIGKILL to this process when its parent ends, then becomes the
command. A `preexec_fn` would do the same but may deadlock where the parent has threads.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def follow_parent(parent: int) -> None:
    """From now on this process ends with its parent."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request: no signal will ever come
            sys.exit(128 + signal.SIGKILL)


def main(argv: list[str]) -> None:
    follow_parent(int(argv[1]))
    command = argv[2:]
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.exit(f"cannot start {command[0]}: {problem.strerror}")


if __name__ == "__main__":
    main(sys.argv)
