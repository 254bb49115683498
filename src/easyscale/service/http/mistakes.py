"""What is wrong with a request, in words: the field, the nearest known name, what is allowed."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.types import Scope

from easyscale.service.http.clean import clean
from easyscale.service.models import Problem

MOST = 5  # mistakes told at once
PLACES = {"body": "", "query": "parameter ", "path": "part of the path ", "header": "header "}


def explain(error: RequestValidationError, scope: Scope) -> Problem:
    """One sentence for each mistake, the first of them as what happened."""
    errors = list(error.errors())
    whole = _not_json(errors)
    if whole is not None:
        return whole
    models = list(_models(getattr(scope.get("route"), "endpoint", None)))
    told = [_sentence(entry, models) for entry in errors[:MOST]]
    more = len(errors) - len(told)
    why = " ".join(reason for _, reason in told) + (f" And {more} more." if more > 0 else "")
    now = "correct it and send it again; /api/v1/docs has every field."
    return Problem(what=" ".join(what for what, _ in told), why=why, now=now)


def _not_json(errors: Sequence[Mapping[str, Any]]) -> Problem | None:
    first = errors[0]
    if first["type"] == "json_invalid":
        return Problem(
            what="The body is not JSON.",
            why=clean(f"at character {first['loc'][-1]}: {first.get('ctx', {}).get('error', '')}"),
            now="send a JSON object.",
        )
    if tuple(first["loc"]) == ("body",) and first["type"] in ("missing", "model_attributes_type", "model_type"):
        return Problem(
            what="The body is not a JSON object.",
            why="it is missing, or something else, or its type is not said.",
            now="send a JSON object with the header Content-Type: application/json.",
        )
    return None


def _sentence(entry: Mapping[str, Any], models: Sequence[type[BaseModel]]) -> tuple[str, str]:
    place, *rest = entry["loc"]
    path = clean(".".join(str(part) for part in rest), 200)
    if entry["type"] == "extra_forbidden":
        return _unknown(str(place), path, str(rest[-1]), _known(rest[:-1], models))
    if not path:
        return "The fields do not fit one another.", _plain(entry)
    name = f"The {PLACES.get(str(place), '')}{'field ' if place == 'body' else ''}{path}"
    if entry["type"] == "missing":
        return f"{name} is missing.", "it has no default."
    return f"{name} is wrong.", _plain(entry)


def _unknown(place: str, path: str, last: str, known: Sequence[str]) -> tuple[str, str]:
    word = "field" if place == "body" else "parameter"
    near = difflib.get_close_matches(last[:100], known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no {word} {path}.{hint}", f"allowed are {', '.join(known) or 'none'}."


def _plain(entry: Mapping[str, Any]) -> str:
    """Pydantic's words, which say what is allowed, as a sentence. What was sent is told where it is short."""
    text = str(entry["msg"]).removeprefix("Value error, ")
    given = entry.get("input")
    told = f" (given: {given!r})" if isinstance(given, (str, int, float, bool)) and len(str(given)) <= 60 else ""
    return clean(f"{text[:1].lower()}{text[1:]}{told}.")


def _models(endpoint: Any) -> Iterator[type[BaseModel]]:
    for hint in typing.get_type_hints(endpoint).values() if endpoint is not None else ():
        yield from _in(hint)


def _in(hint: Any) -> Iterator[type[BaseModel]]:
    """Models in an annotation: `X`, `X | None`, `Annotated[X, ...]`."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    elif typing.get_origin(hint) in (types.UnionType, typing.Union, typing.Annotated):
        for part in typing.get_args(hint):
            yield from _in(part)


def _known(path: Sequence[str | int], models: Sequence[type[BaseModel]]) -> list[str]:
    """Names of the fields of the model that `path` leads to."""
    for model in models:
        here: type[BaseModel] | None = model
        for part in path:
            field = here.model_fields.get(str(part)) if here else None
            here = next(_in(field.annotation), None) if field else None
        if here:
            return sorted(here.model_fields)
    return []
