"""Requests to the service: TLS, time-outs, what is tried again, and what goes wrong as errors of three parts.

A request is tried again only where that cannot do a thing twice: it never left, it changes nothing (GET),
the service can tell that it came before (a submission with its key, an upload named by its content), or the service
said that it did not take it (429, 503).
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service.connection import Connection, is_loopback
from easyscale.service.errors import ConflictError, ForbiddenError, NotFoundError
from easyscale.service.models import Problem

# The service answers from memory; a busy machine may take some seconds.
ANSWER_SECONDS = 10.0
UPLOAD_SECONDS = 120.0
RETRIES = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
PREFIX = "/api/v1"

Params = Mapping[str, str | int | float | bool | list[str] | tuple[str, ...] | None]
_Answer = TypeVar("_Answer")


class ServiceUnreachableError(EasyScaleError):
    """Nobody answers at the address, or not as the service would."""


class TokenError(EasyScaleError):
    """The service does not know the token."""


class BusyError(EasyScaleError):
    """The service takes no more requests for a moment, or is not ready yet."""


class ServiceFaultError(EasyScaleError):
    """The service itself failed (5xx)."""


_KINDS: dict[int, type[EasyScaleError]] = {
    400: UsageError, 401: TokenError, 403: ForbiddenError, 404: NotFoundError, 408: BusyError, 409: ConflictError,
    413: UsageError, 422: UsageError, 429: BusyError, 503: BusyError,
}  # fmt: skip


# ---------------------------------------------------------------------------------------- TLS


class _PinError(ssl.SSLError):
    def __init__(self, seen: str) -> None:
        super().__init__("the certificate is another one")
        self.seen = seen


def tls_context(fingerprint: str | None, cacert: str | None) -> ssl.SSLContext:
    """A pinned certificate is compared before a byte is sent; else an authority must have signed it."""
    if fingerprint is None:
        try:
            return ssl.create_default_context(cafile=cacert)
        except (OSError, ssl.SSLError) as problem:
            raise UsageError(
                f"The certificates in {cacert} cannot be used.",
                f"{problem.strerror or problem}.",
                "name a file in PEM form with --cacert.",
            ) from None

    class Pinned(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            seen = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
            if seen != fingerprint:
                raise _PinError(seen)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.sslsocket_class = Pinned
    return context


# ---------------------------------------------------------------------------------------- requests


class Wire:
    """One service. `transport` and `sleep` are for tests."""

    def __init__(
        self, connection: Connection, *, answer_seconds: float = ANSWER_SECONDS, retries: int = RETRIES,
        transport: httpx.BaseTransport | None = None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.url, self._retries, self.sleep = connection.url, retries, sleep
        self.answer_seconds = answer_seconds
        self._known_pin = connection.fingerprint
        headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
        host = httpx.URL(connection.url).host
        secure = connection.url.startswith("https:")
        self._http = httpx.Client(
            base_url=connection.url, headers=headers, timeout=answer_seconds, transport=transport,
            verify=tls_context(connection.fingerprint, connection.cacert) if secure else False,
            trust_env=not is_loopback(host),  # a proxy of the environment knows nothing of this machine's loopback
        )  # fmt: skip

    def close(self) -> None:
        self._http.close()

    def ask(self, kind: type[_Answer], method: str, path: str, **request: Any) -> _Answer:
        """Send, and read the answer as `kind`."""
        return self.read(kind, self.send(method, path, **request))

    def send(
        self, method: str, path: str, *, params: Params | None = None, body: BaseModel | None = None,
        content: Callable[[], Any] | None = None, headers: Mapping[str, str] | None = None, again: bool | None = None,
        seconds: float | None = None, prefix: str = PREFIX,
    ) -> httpx.Response:  # fmt: skip
        """The answer, if it is 2xx. `again`: may be sent twice; None: only if it is a GET."""
        again = method == "GET" if again is None else again
        sent = dict(headers or {})
        data: Any = None
        if body is not None:
            data = body.model_dump_json(exclude_unset=True).encode()
            sent["Content-Type"] = "application/json"
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                answer = self._http.request(
                    method, prefix + path, params=_present(params), content=content() if content else data,
                    headers=sent, timeout=seconds or self.answer_seconds,
                )  # fmt: skip
            except httpx.HTTPError as problem:
                unsent = isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if last or not (unsent or again) or _is_tls(problem):
                    raise self.unreachable(problem) from None
                self.sleep(FIRST_PAUSE * 2**attempt)
                continue
            if answer.is_success:
                return answer
            if last or not (answer.status_code in (429, 503) or (again and answer.status_code in (408, 502, 504))):
                raise self.refusal(answer)
            self.sleep(_pause(answer, attempt))
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def stream(self, path: str, *, params: Params, silence: float) -> Iterator[httpx.Response]:
        """An answer without an end. `silence`: so long it may say nothing."""
        timeout = httpx.Timeout(self.answer_seconds, read=silence)
        try:
            with self._http.stream(
                "GET", PREFIX + path, params=_present(params), timeout=timeout, headers={"Accept": "text/event-stream"}
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self.refusal(answer)
                yield answer
        except httpx.HTTPError as problem:
            raise self.unreachable(problem) from None

    def read(self, kind: type[_Answer], answer: httpx.Response) -> _Answer:
        """Fields that a newer service added are left out."""
        try:
            value: _Answer = TypeAdapter(kind).validate_json(answer.content, extra="ignore")
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise ServiceUnreachableError(
                f"The answer of {self.url} cannot be understood.",
                f"{place}: {first['msg']}. Something else may listen there, or the service has another version.",
                "`easyscale whoami` shows the version of the service; install the same here.",
            ) from None
        return value

    # ------------------------------------------------------------------------------------ what goes wrong

    def refusal(self, answer: httpx.Response) -> EasyScaleError:
        """The service said no: its own three parts."""
        kind = _KINDS.get(answer.status_code, ServiceFaultError if answer.status_code >= 500 else UsageError)
        try:
            problem = TypeAdapter(Problem).validate_json(answer.content, extra="ignore")
        except ValidationError:
            return ServiceUnreachableError(
                f"{self.url} does not answer as the service would: HTTP {answer.status_code}.",
                "something else listens there, or a proxy stands before it.",
                "check the address: `easyscale login URL` names another one.",
            )
        return kind(problem.what, problem.why, problem.now)

    def unreachable(self, problem: httpx.HTTPError) -> ServiceUnreachableError:
        cause = _causes(problem)
        pin = next((error for error in cause if isinstance(error, _PinError)), None)
        if pin is not None:
            return ServiceUnreachableError(
                f"{self.url} shows another certificate than the one that is known.",
                f"its sha256 is {pin.seen}, not {self._known_pin}. It was made anew, or somebody is in between.",
                f"if `easyscale up` printed this one: `easyscale login {self.url} --fingerprint {pin.seen}`.",
            )
        untrusted = next((error for error in cause if isinstance(error, ssl.SSLCertVerificationError)), None)
        if untrusted is not None:
            return ServiceUnreachableError(
                f"The certificate of {self.url} is not trusted.",
                f"{untrusted.verify_message.rstrip('.')}.",
                f"name its authority with --cacert FILE, or a self-signed one by the fingerprint that `easyscale up` "
                f"printed: `easyscale login {self.url} --fingerprint SHA256`.",
            )
        if any(isinstance(error, ssl.SSLError) for error in cause):
            return ServiceUnreachableError(
                f"There is no TLS with {self.url}.", f"{problem}.", "a service without TLS has an address with http://."
            )
        if isinstance(problem, httpx.TimeoutException):
            why = f"there was no answer within {self.answer_seconds:g} seconds."
        elif isinstance(problem, httpx.RemoteProtocolError | httpx.ReadError):
            why = "the connection broke before the answer came; a service with TLS has an address with https://."
        else:
            why = f"{re.sub(r'^.Errno -?[0-9]+. ', '', str(problem)) or type(problem).__name__}."
        return ServiceUnreachableError(
            f"The service at {self.url} does not answer.",
            why,
            "see that it runs (`easyscale up`) and that the address is right (`easyscale login URL`); jobs that run go "
            "on without it.",
        )


def _present(params: Params | None) -> dict[str, Any]:
    found = {name: value for name, value in (params or {}).items() if value not in (None, (), [])}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in found.items()}


def _causes(problem: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while problem is not None and problem not in found:
        found.append(problem)
        problem = problem.__cause__ or problem.__context__
    return found


def _is_tls(problem: httpx.HTTPError) -> bool:
    """Trying again would show the same certificate."""
    return any(isinstance(error, ssl.SSLError) for error in _causes(problem))


def _pause(answer: httpx.Response, attempt: int) -> float:
    try:
        asked = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        asked = FIRST_PAUSE * 2**attempt
    return min(LONGEST_PAUSE, max(0.0, asked))
