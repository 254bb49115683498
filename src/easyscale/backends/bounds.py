"""Runs a command within limits of the operating system: `python bounds.py MEMORY FILES PROCESSES COMMAND...`.

Started as a file, as `leash` is: it sets its own limits, which no process can raise again without rights, and becomes
the command. "-" is no limit. No core files are written. The number of processes counts all of a user's, threads
included, and the system does not apply it to root.
"""

from __future__ import annotations

import os
import resource
import sys

NAMES = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)


def bound(which: int, most: int) -> None:
    """Never above the limit that is there."""
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def main(argv: list[str]) -> None:
    bound(resource.RLIMIT_CORE, 0)
    for which, text in zip(NAMES, argv[1:4], strict=True):
        if text != "-" and not (which == resource.RLIMIT_NPROC and os.geteuid() == 0):
            bound(which, int(text))
    command = argv[4:]
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.exit(f"cannot start {command[0]}: {problem.strerror}")


if __name__ == "__main__":
    main(sys.argv)
