"""`easyscale up` and `down`: the service of a team, or of one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from easyscale.cli.remote import client_for, missing
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service import connection

if TYPE_CHECKING:
    from easyscale.service.options import UpOptions
    from easyscale.service.presence import Presence

START_SECONDS = 60.0
POLL_SECONDS = 0.1
STORE = "EASYSCALE_STORE"
LOG = "service.log"

DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where all is kept. Default: EASYSCALE_DATA, or ~/.local/share/easyscale."),
]


def up(
    *,
    data_dir: DataDir = None,
    host: Annotated[str, typer.Option(help="Where to listen. Others than the loopback need TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = connection.DEFAULT_PORT,
    name: Annotated[
        list[str] | None, typer.Option(help="A name by which others call this machine. Repeat it.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(metavar="TYPE:COUNT,...", help="Slots on the CPU under these names. Default: what is found."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Who gets which devices: docs/policies.md.")] = "easyscale",
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help=f"PostgreSQL or SQLite. Default: {STORE}, or SQLite in the data directory."),
    ] = None,
    backend: Annotated[Literal["local", "ray"], typer.Option(help="What starts workers.")] = "local",
    ray_address: Annotated[str, typer.Option(metavar="ADDRESS", help="Of a Ray cluster: auto, or HOST:PORT.")] = "auto",
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, in PEM form.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    tls: Annotated[str | None, typer.Option(metavar="self-signed", help="Make a certificate, and keep it.")] = None,
    open_metrics: Annotated[bool, typer.Option("--open-metrics", help="/metrics without a token (loopback).")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="In the background; return once it is ready.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Run the service: HTTP, dashboard, scheduler. Ctrl-C or `easyscale down` ends it; jobs that run go on."""
    from easyscale.service.options import hide_password, up_options
    from easyscale.service.paths import data_dir as default_data_dir
    from easyscale.service.presence import present

    if store is not None and hide_password(store) != store:
        raise UsageError(
            "The password of the store stands in the command line.", "everybody on this machine can read that.",
            f"set {STORE} to the URL instead, or leave the password to ~/.pgpass.",
        )  # fmt: skip
    options = up_options(
        data_dir=data_dir or default_data_dir(), host=host, port=port, names=tuple(name or ()), devices=devices,
        policy=policy, store=store or os.environ.get(STORE) or None, backend=backend, tls_cert=tls_cert,
        ray_address=ray_address,
        tls_key=tls_key, tls=tls, open_metrics=open_metrics, detach=detach, quiet=quiet,
    )  # fmt: skip
    if (there := present(options.data_dir)) is not None:
        raise UsageError(
            f"A service runs with {options.data_dir} already.", f"it is process {there.pid}, at {there.url}.",
            "use that one, stop it with `easyscale down`, or name another folder with --data-dir.",
        )  # fmt: skip
    if detach:
        _detach(options)
        return
    try:
        from easyscale.service.serve import run
    except ImportError as problem:
        if (problem.name or "").startswith("easyscale"):
            raise
        missing(problem)
    run(options)


# ---------------------------------------------------------------------------------------- in the background


def _detach(options: UpOptions) -> None:
    from easyscale.service.presence import present

    options.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = options.data_dir / LOG
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(handle).st_size
    environment = {**os.environ, **({STORE: options.store} if options.store else {})}
    with os.fdopen(handle, "wb") as out:
        child = subprocess.Popen(
            (sys.executable, "-m", "easyscale", "up", *_flags(options)), stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, env=environment, start_new_session=True,
        )  # fmt: skip

    def ready() -> Presence | None:
        found = present(options.data_dir)
        return found if found is not None and found.pid == child.pid and _answers(found) else None

    found = _until(lambda: ready() or child.poll() is not None, START_SECONDS) and ready()
    if not found:
        raise _not_started(child, log, begin)
    child.returncode = 0  # it stays: nobody is to wait for it
    if not options.quiet:
        print(f"The service runs at {found.url} (process {found.pid}). `easyscale down` stops it.")
        print(f"log: {log}", file=sys.stderr)


def _flags(options: UpOptions) -> list[str]:
    """The same again, without --detach. The store's URL goes by the environment: it may hold a password."""
    from easyscale.core.cluster import show

    flags = ["--data-dir", str(options.data_dir), "--host", options.host, "--port", str(options.port)]
    flags += [word for name in options.names for word in ("--name", name)]
    flags += ["--policy", options.policy, "--backend", options.backend, "--ray-address", options.ray_address]
    if options.devices is not None:
        flags += ["--devices", show(options.devices)]
    if options.tls_cert is not None and options.tls_key is not None:
        flags += ["--tls-cert", os.path.abspath(options.tls_cert), "--tls-key", os.path.abspath(options.tls_key)]
    flags += ["--tls", "self-signed"] * options.self_signed
    return [*flags, *["--open-metrics"] * options.open_metrics]


def _answers(found: Presence) -> bool:
    stored = connection.load()
    known = stored if stored is not None and stored.url == found.url else connection.Connection(url=found.url)
    try:
        with client_for(known, answer_seconds=2.0, retries=0) as client:
            return client.ready()
    except EasyScaleError:
        return False


def _not_started(child: subprocess.Popen[bytes], log: Path, begin: int) -> EasyScaleError:
    with log.open("rb") as file:
        file.seek(begin)
        said = file.read(1 << 16).decode(errors="replace").strip()
    if child.poll() is None:
        child.terminate()
        return EasyScaleError(
            f"The service was not ready within {START_SECONDS:g} seconds.", said[-2000:] or "it said nothing.",
            f"see {log}; run `easyscale up` without --detach to watch it.",
        )  # fmt: skip
    return EasyScaleError(
        "The service did not start.", said[-2000:] or f"it ended with code {child.returncode}.", f"see {log}."
    )


def _until(true: Callable[[], object], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= ends:
            return False
        time.sleep(POLL_SECONDS)
    return True


# ---------------------------------------------------------------------------------------- down


def down(
    *,
    data_dir: DataDir = None,
    cancel_jobs: Annotated[bool, typer.Option("--cancel-jobs", help="End all its jobs first.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end.")] = 60.0,
) -> None:
    """Stop the service that this user started. Jobs that run go on; the next `up` finds them."""
    from easyscale.service.paths import data_dir as default_data_dir
    from easyscale.service.presence import present

    folder = Path(os.path.abspath((data_dir or default_data_dir()).expanduser()))
    found = present(folder)
    if found is None:
        raise UsageError(
            "No service runs.", f"none is there that works on {folder}.",
            "name its folder with --data-dir, if it has another one.",
        )  # fmt: skip
    if cancel_jobs:
        _cancel_all(found.url, timeout)
    try:
        os.kill(found.pid, signal.SIGTERM)
    except PermissionError:
        raise UsageError(
            f"The service (process {found.pid}) is another user's.", "only they may stop it.", "ask them."
        ) from None
    except ProcessLookupError:
        pass
    if not _until(lambda: present(folder) is None, timeout):
        raise EasyScaleError(
            f"The service (process {found.pid}) has not ended in {timeout:g} seconds.",
            "it was asked to, and may still be writing.",
            f"wait, or `kill -9 {found.pid}`: nothing that was accepted is lost.",
        )
    print("The service has ended." if cancel_jobs else "The service has ended. Jobs that ran go on.")


def _cancel_all(url: str, timeout: float) -> None:
    from easyscale.cli.verbs import ACTIVE
    from easyscale.service.errors import ConflictError

    with client_for(connection.needed(url)) as client:
        jobs = [row.id for row in client.all_jobs(states=ACTIVE)]
        for job in jobs:
            try:
                client.cancel(job)
            except ConflictError:
                continue  # it ended by itself
        ends = time.monotonic() + timeout
        for job in jobs:
            client.wait(job, max(0.0, ends - time.monotonic()), 0.2)
    print(f"cancelled: {', '.join(jobs) or 'nothing'}", file=sys.stderr)
