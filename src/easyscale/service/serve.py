"""`easyscale up`: all parts of the service in one process."""

from __future__ import annotations

import gc
import getpass
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from easyscale.core.errors import UsageError
from easyscale.master.files import write_json
from easyscale.service import connection, presence
from easyscale.service.devices import Found, declared, discover
from easyscale.service.fleet import LocalFleet
from easyscale.service.http.app import make_app
from easyscale.service.http.server import check_exposure, listen, serve
from easyscale.service.http.settings import Settings
from easyscale.service.http.tls import Tls, given_certificate, own_certificate
from easyscale.service.live import Live
from easyscale.service.metrics import Metrics
from easyscale.service.options import UpOptions
from easyscale.service.paths import make_data_dir
from easyscale.service.people import People
from easyscale.service.ports import Fleet
from easyscale.service.store import open_store
from easyscale.service.version import installed

logger = logging.getLogger(__name__)


def run(options: UpOptions) -> None:
    """Until SIGINT or SIGTERM. The jobs go on."""
    _log_to_stderr(quiet=options.quiet)
    folder = make_data_dir(options.data_dir)
    with closing(open_store(options.store or folder)) as store, listen(options.host, options.port) as sock:
        store.claim()
        people = People(store)
        tls = _tls(options)
        token = people.first_admin(_name())
        check_exposure(options.host, tls is not None, len(people.tokens()))
        port = sock.getsockname()[1]
        settings = Settings(
            host=options.host, port=port, names=options.names, tls=tls is not None, open_metrics=options.open_metrics,
            spool=folder,
        )  # fmt: skip
        metrics = Metrics()
        fleet, devices = _fleet(options)
        live = Live(
            store, fleet, folder, policy=options.policy, version=installed(), metrics=metrics,
            keep=store.claim,
        )  # fmt: skip
        app = make_app(live, people, settings, metrics)
        with _announced(options, options.url(port)):
            _connect(options, options.url(port), token, tls, people)
            settle()
            live.start(devices)
            try:
                serve(app, host=options.host, tls=tls, sock=sock, on_ready=lambda url: _say(options, url, live))
            finally:
                live.close()


def settle() -> None:
    """All that is there by now stays: Python need not look through it for garbage, nor look each time an answer is made
    (a page of a large cluster is some thousand objects)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _fleet(options: UpOptions) -> tuple[Fleet, list[Found]]:
    if options.backend == "ray":
        from easyscale.service.ray_fleet import RayFleet

        if options.devices is not None:
            raise UsageError(
                "--devices does not go with --backend ray.",
                "devices are what Ray's nodes say: custom resources by type, or GPUs.",
                "leave it out, and start nodes with `ray start --resources '{\"v100\": 2}'`.",
            )
        fleet = RayFleet(options.data_dir, options.ray_address)
        return fleet, fleet.stock()
    return LocalFleet(options.data_dir), declared(options.devices) if options.devices is not None else discover()


def _tls(options: UpOptions) -> Tls | None:
    if options.tls_cert is not None and options.tls_key is not None:
        return given_certificate(options.tls_cert, options.tls_key)
    if options.self_signed:
        return own_certificate(options.data_dir / "tls", (options.host, *options.names))
    return None


@contextmanager
def _announced(options: UpOptions, url: str) -> Iterator[None]:
    presence.announce(options.data_dir, url)
    try:
        yield
    finally:
        presence.withdraw(options.data_dir)


def _connect(options: UpOptions, url: str, token: str | None, tls: Tls | None, people: People) -> None:
    """Whoever started it first is its admin, and the commands of that user find it."""
    known, fingerprint = connection.load(), tls.fingerprint if tls is not None and options.self_signed else None
    if fingerprint is not None:
        _print(options, f"The certificate's fingerprint is {fingerprint}.")
    if token is not None:
        _print(options, f"An admin {_name()} was made.")
        _store(options, connection.Connection(url=url, token=token, fingerprint=fingerprint), known)
    elif known is None:
        _print(options, "No connection is stored for this user: `easyscale login` stores one, with a token of yours.")
    elif known.token is not None and people.authenticate(known.token) is not None:
        connection.save(connection.Connection(url=url, token=known.token, fingerprint=fingerprint))


def _store(options: UpOptions, new: connection.Connection, known: connection.Connection | None) -> None:
    """A login to another service is kept, and said: it is in nobody's way where the new one has a file of its own."""
    if known is None or known.url == new.url:
        _print(options, f"The token is in {connection.save(new)}, where commands find it.")
        return
    path = options.data_dir / "admin.json"
    write_json(path, {"url": new.url, "token": new.token, "fingerprint": new.fingerprint})
    _print(options, f"This user is logged in to {known.url}, and stays so; the token of this service is in {path}.")
    _print(options, f"`easyscale login {new.url}` changes over to it.")


def _say(options: UpOptions, url: str, live: Live) -> None:
    view = live.cluster()
    devices = ", ".join(f"{one.total} {one.kind}" for one in view.types) or "none"
    _print(options, f"EasyScale {installed()} at {url} · devices: {devices} · policy: {live.policy}")
    if view.queued or view.running:
        _print(options, f"{view.running} jobs run and {view.queued} wait.")
    _print(options, "Submit a job with `easyscale submit`; Ctrl-C ends the service, and jobs go on.")


def _print(options: UpOptions, text: str) -> None:
    if not options.quiet:
        print(text, flush=True)


def _name() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"user-{os.getuid()}"
    return name if name.isidentifier() else "admin"


def _log_to_stderr(*, quiet: bool) -> None:
    from easyscale.service.http.logs import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler], force=True)
    for name in ("alembic", "uvicorn.error"):  # what they tell of a plain start is of no use to whoever starts it
        logging.getLogger(name).setLevel(logging.WARNING)
