"""A running service for each test; `start` for one with other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from service.running import Service, running


@pytest.fixture
def start() -> Iterator[Callable[..., Service]]:
    with ExitStack() as stack:

        def begin(**settings: Any) -> Service:
            return stack.enter_context(running(**settings))

        yield begin


@pytest.fixture
def service(start: Callable[..., Service]) -> Service:
    return start()


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    """For tests that change nothing."""
    with running(rate=1e6, burst=1_000_000, login_failures=1_000_000) as service:
        yield service
