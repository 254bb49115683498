"""Options of readers as a command line has them: text, turned into what the reader's signature asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any, get_args

from easyscale.core.cluster import Level
from easyscale.core.errors import UsageError
from easyscale.planner.reduction import Reduction
from easyscale.simulator.readers.assumed import Assumptions

if TYPE_CHECKING:
    from easyscale.simulator.readers import Format


def settings(name: str, how: Format, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the format's reader is called with. Options that it does not have are refused."""
    parameters = list(signature(how.function).parameters.values())[1:]
    own = {parameter.name: str(parameter.annotation) for parameter in parameters}
    assumed = {field.name: str(field.type) for field in fields(Assumptions)} if how.assumes else {}
    own.pop("assumptions", None)
    strange = [option for option in options if option not in own and option not in assumed]
    if strange:
        raise UsageError(
            f"The trace format {name} has no option {', '.join(strange)}.",
            f"its options are {', '.join((*own, *assumed))}.",
            "leave it out, or name another format.",
        )
    found = {option: _typed(option, value, own[option]) for option, value in options.items() if option in own}
    if how.assumes:
        given = {
            option: _typed(option, value, assumed[option]) for option, value in options.items() if option in assumed
        }
        found["assumptions"] = _checked(Assumptions(**given))
    return found


def _checked(of: Assumptions) -> Assumptions:
    for what, wrong in (
        (f"batch_seconds is {of.batch_seconds:g}", of.batch_seconds <= 0),
        (f"ests_per_device is {of.ests_per_device}", of.ests_per_device < 1),
        (f"level is {of.level}", of.level not in get_args(Level)),
        ("a relative speed is not above 0", any(speed <= 0 for speed in (of.relative or {}).values())),
    ):
        if wrong:
            raise UsageError(f"Nothing can be assumed so: {what}.", "no job is like that.", "give another value.")
    return of


def _typed(name: str, value: Any, annotation: str) -> Any:
    """Values that are no text are taken as they are."""
    if not isinstance(value, str):
        return value
    kinds = [kind.strip() for kind in annotation.split("|")]
    if annotation.startswith("Literal["):
        words = [word.strip(" \"'") for word in annotation.removeprefix("Literal[").rstrip("]").split(",")]
        if value not in words:
            raise UsageError(
                f"The option {name} of a trace cannot be {value!r}.",
                f"it is {' or '.join(words)}.",
                "name one of these.",
            )
    if "None" in kinds and value.lower() in ("", "none"):
        return None
    try:
        for kind in kinds:
            if kind == "bool":
                return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[value.lower()]
            if kind in ("int", "float"):
                return int(value) if kind == "int" else float(value)
            if kind.startswith("tuple[str"):
                return tuple(part.strip() for part in value.split(","))
            if kind.startswith("Mapping[str, float") or kind == "Reduction":
                pairs = {key.strip(): float(number) for key, _, number in (p.partition(":") for p in value.split(","))}
                return pairs if kind.startswith("Mapping") else Reduction(**pairs)  # type: ignore[arg-type]
            if kind.startswith("Tables"):
                return dict(part.split(":", 1) for part in value.split(","))
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"The option {name} of a trace cannot be {value!r}.",
            f"it is {' or '.join(kinds)}.",
            "write numbers as 0.25, lists as a,b, speeds as t4:0.6,a100:1.8.",
        ) from None
    return value
