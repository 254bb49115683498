"""Requests made up from the schema: no answer is a crash, and each is as the schema says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.running import Service, running

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def free() -> Iterator[Service]:
    """Without limits on how often one asks."""
    with running(rate=1e6, burst=1_000_000, login_failures=1_000_000, stream_seconds=0.01) as service:
        yield service


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "examples"), [("positive", 40), ("negative", 8)])
def test_every_answer_is_as_the_schema_says(free: Service, mode: str, examples: int) -> None:
    """Of each operation, so many requests that fit the schema and so many that do not."""
    schema = schemathesis.openapi.from_url(f"{free.url}/api/v1/openapi.json")
    headers = {"Authorization": f"Bearer {free.tokens['root']}"}
    tried: set[str] = set()

    def try_one(operation: schemathesis.APIOperation) -> None:
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        def check(case: schemathesis.Case) -> None:
            tried.add(operation.label)
            case.call_and_validate(session=session, headers=headers, checks=CHECKS, timeout=20)

        check()

    with requests.Session() as session:
        for result in schema.get_all_operations():
            with suppress(Unsatisfiable):  # where nothing can be wrong
                try_one(result.ok())
    assert len(tried) >= 20
