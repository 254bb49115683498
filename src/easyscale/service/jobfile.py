"""`job.yaml`: read with line numbers, so that a mistake is shown where it stands. Several documents: several jobs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from easyscale.core.errors import UsageError
from easyscale.service.models import JobLimits, JobSpec

MOST_BYTES = 1 << 20
KEYS = tuple(JobSpec.model_fields)
_NUMBERS = {
    "ests", "min_workers", "max_workers", "memory_gb", "threads", "priority", "steps", "max_steps", "checkpoint_every",
    "checkpoint_seconds", "retries", "array",
}  # fmt: skip
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Mistake:
    place: str  # `line 3`, `--ests`
    text: str
    now: str


@dataclass(slots=True)
class Draft:
    """A job as it was written. `places`: where each value stands; `folder`: where relative paths start."""

    folder: Path
    source: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[tuple[str, ...], str] = field(default_factory=dict)
    first: str = ""  # where the whole of it begins
    snapshot: bool | None = None  # upload a copy of the working directory; None: as it suits

    def say(self, key: str, value: Any, place: str) -> None:
        """A flag counts more than the file."""
        self.values[key] = value
        self.places = {path: where for path, where in self.places.items() if path[0] != key} | {(key,): place}

    def place(self, *path: str | int) -> str:
        """The nearest place that is known."""
        words = tuple(str(part) for part in path)
        while words and words not in self.places:
            words = words[:-1]
        return self.places.get(words, self.first)

    def check(self) -> JobSpec:
        """As the service will: every mistake with its place."""
        try:
            return JobSpec.model_validate_json(json.dumps(self.values), strict=True)
        except ValidationError as problem:
            wrong = [_of(self, error) for error in problem.errors(include_url=False)]
        raise refused(self.source, wrong)


def refused(source: str, wrong: list[Mistake]) -> UsageError:
    """One error for all mistakes."""
    if len(wrong) == 1:
        place = f", {wrong[0].place}" if wrong[0].place else ""
        return UsageError(f"{source}{place}: {wrong[0].text}", "the job cannot be submitted so.", wrong[0].now)
    lines = [f"{one.place + ': ' if one.place else ''}{one.text}" for one in wrong[:8]]
    more = f"\n       and {len(wrong) - 8} more" if len(wrong) > 8 else ""
    cures = list(dict.fromkeys(one.now for one in wrong[:8]))
    return UsageError(
        f"{source} has {len(wrong)} mistakes.", "\n       ".join(lines) + more, "\n       ".join(cures)
    )


# ---------------------------------------------------------------------------------------- reading


def read_jobs(path: Path) -> list[Draft]:
    """The jobs of a file, one a document. Relative paths in it start at its folder."""
    return parse_jobs(_text(path), path.name, path.resolve().parent)


def parse_jobs(text: str, source: str, folder: Path) -> list[Draft]:
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(
            f"{source}{place}: this is no YAML.",
            f"{getattr(problem, 'problem', None) or problem}.",
            "`key: value` on a line of its own; text with a colon or a # in it goes into quotes.",
        ) from None
    drafts, wrong = [], list[Mistake]()
    for node in nodes:
        if node is None or (isinstance(node, ScalarNode) and node.value == ""):
            continue
        draft = Draft(folder, source, first=_line(node))
        wrong += _Reader(draft).read(node)
        drafts.append(draft)
    if wrong:
        raise refused(source, wrong)
    if not drafts:
        raise UsageError(f"{source} holds no job.", "it is empty.", "write at least `script:` and `ests:` into it.")
    return drafts


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path} is too large.", "a job file has at most 1 MB.", "name the job file, not data.")
        return data.decode("utf-8-sig")
    except OSError as problem:
        raise UsageError(
            f"The job file {path} cannot be read.", f"{problem.strerror}.", "check its path, and that you may read it."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text.", "it is not UTF-8.", "name a job file in YAML.") from None


def _line(node: Node) -> str:
    return f"line {node.start_mark.line + 1}"


class _Reader:
    """One document into a draft. Text stays as it was written: `1.10` in `args` is not the number 1.1."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._wrong = draft, list[Mistake]()

    def read(self, node: Node) -> list[Mistake]:
        special: dict[str, Callable[[Node], Any]] = {
            "args": self._args, "env": self._env, "types": self._types, "snapshot": self._snapshot,
            "limits": self._limits, "deadline": self._deadline,
        }  # fmt: skip
        for key, value in self._pairs(node, KEYS, "a job file"):
            self._draft.places[key,] = _line(value)
            read = special.get(key, lambda found, key=key: self._plain(key, found))
            found = read(value)
            if found is not None:
                self._draft.values[key] = found
        return self._wrong

    def _pairs(self, node: Node, known: tuple[str, ...] | None, what: str) -> Iterator[tuple[str, Node]]:
        if not isinstance(node, MappingNode):
            self._say(node, f"{what} is made of `key: value` lines.", "write `key: value`, one a line.")
            return
        seen: dict[str, int] = {}
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str):
                self._say(key_node, "a key is a plain word.", "write `key: value`.")
            elif key in seen:
                now = f"it also stands on line {seen[key]}; keep one."
                self._say(key_node, f"`{key}` comes twice.", now)
            elif known is not None and key not in known:
                near = get_close_matches(key.replace("-", "_").lower(), known, n=3, cutoff=0.6)
                now = f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else (
                    f"the keys are {', '.join(known)}."
                )  # fmt: skip
                self._say(key_node, f"there is no key `{key}`.", now)
            else:
                seen[key] = key_node.start_mark.line + 1
                yield key, value

    def _plain(self, key: str, node: Node) -> Any:
        if not isinstance(node, ScalarNode):
            self._say(node, f"`{key}` is one value, not a list or a group.", f"write `{key}: VALUE`.")
            return None
        if _is_null(node):
            return None
        if key == "gang":
            return {"true": True, "false": False}.get(node.value.lower(), node.value)
        return _number(node) if key in _NUMBERS else node.value

    def _args(self, node: Node) -> list[str] | None:
        if isinstance(node, ScalarNode) and not _is_null(node):
            try:
                return shlex.split(node.value)
            except ValueError as problem:
                self._say(node, f"`args` is not as a shell would write it: {problem}.", "close the quotes.")
                return None
        return self._texts("args", node, "args: [--lr, 0.1]")

    def _types(self, node: Node) -> list[str] | None:
        if isinstance(node, ScalarNode) and not _is_null(node):
            return [kind.strip() for kind in node.value.split(",")]
        return self._texts("types", node, "types: [v100, p100]")

    def _texts(self, key: str, node: Node, example: str) -> list[str] | None:
        if _is_null(node):
            return None
        if not isinstance(node, SequenceNode):
            self._say(node, f"`{key}` is a list.", f"write it like `{example}`.")
            return None
        for place, part in enumerate(node.value):
            self._draft.places[key, str(place)] = _line(part)
            if not isinstance(part, ScalarNode):
                self._say(part, f"`{key}` is a list of plain values.", f"write it like `{example}`.")
                return None
        return [part.value for part in node.value]

    def _env(self, node: Node) -> dict[str, str] | None:
        if _is_null(node):
            return None
        found = {}
        for name, value in self._pairs(node, None, "`env`"):
            self._draft.places["env", name] = _line(value)
            if not isinstance(value, ScalarNode) or _is_null(value):
                self._say(value, f"`env.{name}` has no value, or is no plain one.", f'write `{name}: "..."`.')
            else:
                found[name] = value.value
        return found

    def _limits(self, node: Node) -> dict[str, Any] | None:
        if _is_null(node):
            return None
        found = {}
        for name, value in self._pairs(node, tuple(JobLimits.model_fields), "`limits`"):
            self._draft.places["limits", name] = _line(value)
            if isinstance(value, ScalarNode) and not _is_null(value):
                found[name] = _number(value)
        return found

    def _snapshot(self, node: Node) -> str | None:
        """`true` and `false` say whether to upload a copy; else it is the sha256 of one that was."""
        word = node.value if isinstance(node, ScalarNode) else None
        if isinstance(word, str) and word.lower() in ("true", "false"):
            self._draft.snapshot = word.lower() == "true"
            return None
        if not isinstance(word, str):
            self._say(node, "`snapshot` is true, false or a sha256.", "write `snapshot: true`.")
        return word if isinstance(word, str) and word else None

    def _deadline(self, node: Node) -> str | None:
        if _is_null(node):
            return None
        moment = deadline(node.value) if isinstance(node, ScalarNode) else None
        if moment is None:
            self._say(node, "`deadline` is no time.", DEADLINE)
        return moment

    def _say(self, node: Node, text: str, now: str) -> None:
        self._wrong.append(Mistake(_line(node), text, now))


DEADLINE = "write it like 2030-01-31T18:00, or 90m, 2h, 3d from now."


def deadline(text: str, now: datetime | None = None) -> str | None:
    """A moment, or so long from now. Without a zone it is this machine's time."""
    text = text.strip()
    if text[-1:] in _UNITS and text[:-1].replace(".", "", 1).isdigit():
        moment = (now or datetime.now().astimezone()) + timedelta(seconds=float(text[:-1]) * _UNITS[text[-1]])
        return moment.isoformat(timespec="seconds")
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError:
        return None


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and node.value in ("", "~", "null", "Null", "NULL")


def _number(node: ScalarNode) -> int | float | str:
    """What is in quotes stays text, and is refused later with its place."""
    if node.style is None:
        for kind in (int, float):
            try:
                return kind(node.value)
            except ValueError:
                continue
    return str(node.value)


# ---------------------------------------------------------------------------------------- mistakes in values


def _of(draft: Draft, error: Any) -> Mistake:
    """A mistake that the model found, in our words."""
    path = tuple(str(part) for part in error["loc"] if part != "[key]")
    kind, facts = error["type"], error.get("ctx", {})
    name, place = ".".join(path), draft.place(*path)
    given = json.dumps(error.get("input"), default=str, ensure_ascii=False)
    given = given if len(given) <= 60 else f"{given[:57]}..."
    if kind == "missing":
        return Mistake(draft.first, f"`{name}` is missing.", f"say it: `{name}: ...` in the file, or --{_flag(name)}.")
    if kind == "value_error":
        text = str(facts.get("error", error["msg"]))
        return Mistake(draft.first, f"{text}.", "see `easyscale submit --help`.")
    if kind == "extra_forbidden":
        return Mistake(place, f"there is no key `{name}`.", f"the keys are {', '.join(KEYS)}.")
    if kind in ("int_type", "int_parsing", "int_from_float"):
        return Mistake(place, f"`{name}` is {given}, not a whole number.", "write a number without quotes or a point.")
    if kind in ("float_type", "float_parsing"):
        return Mistake(place, f"`{name}` is {given}, not a number.", "write a number, without quotes.")
    if kind in ("bool_type", "bool_parsing"):
        return Mistake(place, f"`{name}` is {given}, neither true nor false.", "write true or false.")
    if kind == "string_pattern_mismatch":
        return Mistake(place, f"`{name}` is {given}, which it cannot be.", _shape(path))
    return Mistake(place, f"`{name}` is {given}: {_lowered(error['msg'])}.", "choose a value that fits.")


def _shape(path: tuple[str, ...]) -> str:
    if path[0] == "env":
        return "a name has letters, digits and _; a value has no zero byte."
    if path[0] == "snapshot":
        return "write true, false, or the 64 digits that an upload gave."
    return "a name has letters, digits, dots, - and _, begins and ends with a letter or digit, 63 at most."


def _flag(name: str) -> str:
    return name.split(".", maxsplit=1)[0].replace("_", "-")


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
