"""`easyscale submit`: a job file, or flags and a script, to jobs of the service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from easyscale.cli.remote import Json, Server, client_for, missing
from easyscale.cli.tables import clean
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service import connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from easyscale.service.client import ServiceClient
    from easyscale.service.jobfile import Draft

FILES = (".yaml", ".yml")
FLAGS = "The command line"


def submit(
    what: Annotated[
        list[str],
        typer.Argument(metavar="JOB.YAML | -- SCRIPT [ARGS]...", help="A job file; or, after `--`, what to run.",
                       show_default=False),
    ],
    *,
    ests: Annotated[int | None, typer.Option(help="Number of ESTs. It decides the result.")] = None,
    max_workers: Annotated[int | None, typer.Option(help="At most so many workers. Default: one an EST.")] = None,
    min_workers: Annotated[int | None, typer.Option(help="Wait rather than run on fewer. Default: 1.")] = None,
    gang: Annotated[bool | None, typer.Option("--gang", help="Exactly --max-workers or none: not elastic.")] = None,
    types: Annotated[str | None, typer.Option(metavar="TYPE,...", help="Only these types of devices.")] = None,
    memory_gb: Annotated[float | None, typer.Option(metavar="GB", help="Memory that a device must have.")] = None,
    determinism: Annotated[Literal["D0", "D1", "D2"] | None, typer.Option(help="The promise. Default: D1.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of each worker. Default: 1.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first. Default: 0.")] = None,
    team: Annotated[str | None, typer.Option(help="Whose quota it counts to. Default: yours.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name. Default: the script's.")] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in `python -m`.")] = False,
    workdir: Annotated[str | None, typer.Option(metavar="DIR", help="Where it runs. Default: here.")] = None,
    snapshot: Annotated[
        bool | None,
        typer.Option("--snapshot/--path", help="Run in an uploaded copy of the folder, or in the folder itself. "
                     "Default: itself, if the service is on this machine."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="A variable for it. Repeat it.")] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="The interpreter. Default: the service's.")] = None,
    steps: Annotated[int | None, typer.Option(help="Global steps in all, as far as you know.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="End after so many global steps.")] = None,
    retries: Annotated[int | None, typer.Option(help="Starts after a failure. Default: 0.")] = None,
    array: Annotated[int | None, typer.Option(metavar="N", help="N jobs; EASYSCALE_ARRAY_INDEX tells which.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="2030-01-31T18:00, or 90m, 2h, 3d.")] = None,
    checkpoint_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Default: a folder of the service.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(metavar="K", help="A checkpoint every K steps.")] = None,
    key: Annotated[str | None, typer.Option(help="Submitted twice with the same key, it is one job.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the job's exit code.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent. Nothing is.")] = False,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """Hand a job to the service. Prints its id.

    Either a file (docs/howto/submit.md has all its keys), with flags that count more than it; or flags, then `--` and a
    script with its arguments.
    """
    try:
        from easyscale.service.jobfile import Draft, read_jobs
    except ImportError as problem:
        missing(problem)
    found = connection.configured(server) if dry_run else connection.needed(server)
    flags = {
        "ests": ests, "max_workers": max_workers, "min_workers": min_workers, "gang": gang, "memory_gb": memory_gb,
        "types": None if types is None else [kind.strip() for kind in types.split(",")], "determinism": determinism,
        "threads": threads, "priority": priority, "team": team, "name": name, "steps": steps, "max_steps": max_steps,
        "retries": retries, "array": array, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    paths = {"workdir": workdir, "python": python, "checkpoint_dir": checkpoint_dir}
    from_file = what[0].endswith(FILES) and not module
    drafts = read_jobs(Path(what[0])) if from_file else [Draft(Path.cwd(), FLAGS)]
    here = found is None or found.loopback
    for draft in drafts:
        _say_what(draft, what[1:] if from_file else what, from_file=from_file, module=module)
        for flag, value in flags.items():
            if value is not None:
                draft.say(flag, value, _flag(flag))
        _say_env(draft, env or [])
        _say_deadline(draft, deadline)
        draft.snapshot = draft.snapshot if snapshot is None else snapshot
        _settle_paths(draft, paths, here=here)
    _send(drafts, found, key=key, wait=wait, dry_run=dry_run, json_output=json_output)


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


# ---------------------------------------------------------------------------------------- from flags to drafts


def _say_what(draft: Draft, words: list[str], *, from_file: bool, module: bool) -> None:
    if from_file:
        if words and words[0].endswith(FILES):
            raise UsageError(
                f"{words[0]} stands after {draft.source}.", "one job file is taken at a time.",
                "several jobs go into one file, with a line `---` between; arguments of the script go into `args`.",
            )  # fmt: skip
        if words:
            draft.say("args", words, "after the file")
    else:
        draft.say("module" if module else "script", words[0], "after `--`")
        draft.say("args", words[1:], "after `--`")
    script = draft.values.get("script") or draft.values.get("module")
    if "name" not in draft.values and script:
        stem = script.rpartition(".")[2] if draft.values.get("module") else Path(script).stem
        draft.values["name"] = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem).strip(
            "._-"
        )[:63] or "job"


def _say_env(draft: Draft, wishes: list[str]) -> None:
    if not wishes:
        return
    given = dict(draft.values.get("env", {}))
    for wish in wishes:
        name, equals, value = wish.partition("=")
        if not equals and name not in os.environ:
            raise UsageError(
                f"--env {wish} has no value.", f"there is no variable {name} here to take it from.",
                f"write --env {name}=VALUE.",
            )  # fmt: skip
        given[name] = value if equals else os.environ[name]
    draft.say("env", given, "--env")


def _say_deadline(draft: Draft, text: str | None) -> None:
    from easyscale.service.jobfile import DEADLINE
    from easyscale.service.jobfile import deadline as read

    if text is None:
        return
    moment = read(text)
    if moment is None:
        raise UsageError(f"--deadline {text} is no time.", "it is a moment, or so long from now.", DEADLINE)
    draft.say("deadline", moment, "--deadline")


def _settle_paths(draft: Draft, flags: Mapping[str, str | None], *, here: bool) -> None:
    """Relative paths of the file start at its folder, those of flags here. `here`: the service is on this machine."""
    for key, value in flags.items():
        if value is not None:
            bare = key == "python" and "/" not in value
            draft.say(key, value if bare else os.path.abspath(value), _flag(key))
    if "snapshot" in draft.values:
        return  # one that was uploaded before; the service knows what is in it
    draft.snapshot = not here if draft.snapshot is None else draft.snapshot
    for key in ("python", "checkpoint_dir"):
        value = draft.values.get(key)
        if value is None or os.path.isabs(value) or (key == "python" and "/" not in value):
            continue
        if not here:
            raise UsageError(
                f"{draft.source}, {draft.place(key)}: {key} is {value}, which is relative.",
                "it is a path on the service's machine, which is another one.",
                "write a whole path, from / on.",
            )
        draft.values[key] = str(draft.folder / value)
    workdir = draft.folder / draft.values.get("workdir", ".")
    if not draft.snapshot and not here and not os.path.isabs(draft.values.get("workdir", "")):
        raise UsageError(
            "--path needs --workdir with a whole path.",
            "the folder is one of the service's machine, which is another one.",
            "name it, or upload a copy with --snapshot.",
        )
    draft.values["workdir"] = os.path.normpath(workdir)
    if draft.snapshot or here:
        _check_script(draft, Path(draft.values["workdir"]))


def _check_script(draft: Draft, workdir: Path) -> None:
    """It is there, inside of the working directory; a path from the folder where the command was given is made one."""
    if not workdir.is_dir():
        raise UsageError(
            f"There is no folder {workdir}.", f"{draft.source} says to run there.", "check workdir, or --workdir."
        )
    script = draft.values.get("script")
    if not isinstance(script, str):
        return
    for base in (workdir, draft.folder):
        path = Path(os.path.normpath(base / script))
        if path.is_file():
            inside = os.path.relpath(path, workdir)
            if inside.startswith("../"):
                raise UsageError(
                    f"The script {script} is not in the working directory.", f"that is {workdir}.",
                    f"say --workdir {os.path.relpath(path.parent)}, or another folder that holds it.",
                )  # fmt: skip
            draft.values["script"] = inside
            return
    place = draft.place("script")
    raise UsageError(
        f"{draft.source}{', ' + place if place else ''}: there is no script {script}.", f"{workdir} does not hold it.",
        "check the path; relative ones start at workdir. With -m it is a module.",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- to the service


def _send(
    drafts: list[Draft], found: connection.Connection | None, *, key: str | None, wait: bool, dry_run: bool,
    json_output: bool,
) -> None:  # fmt: skip
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="easyscale-submit-") as folder:
        packed = _pack(drafts, Path(folder))
        specs = [draft.check() for draft in drafts]  # all, before anything is sent
        if dry_run:
            _show(specs, packed)
            return
        assert found is not None
        with client_for(found) as client:
            for archive, _ in packed.values():
                client.upload(archive)
            jobs, new = list[str](), True
            for number, spec in enumerate(specs):
                own = key if key is None or len(specs) == 1 else f"{key}-{number}"
                done = client.submit(spec, own)
                jobs += done.jobs
                new &= done.new
            _tell(client, jobs, new, json_output)
            if wait:
                _wait(client, jobs)


def _pack(drafts: list[Draft], folder: Path) -> dict[str, tuple[Path, Any]]:
    """An archive for each working directory that is to be copied, by its sha256."""
    from easyscale.service.packing import pack

    done: dict[str, tuple[Path, Any]] = {}
    names: dict[str, str] = {}
    for draft in drafts:
        if not draft.snapshot or "snapshot" in draft.values:
            continue
        workdir = draft.values.pop("workdir")
        if workdir not in names:
            archive = folder / f"{len(names)}.tar.gz"
            packed = pack(Path(workdir), archive)
            names[workdir] = packed.sha256
            done[packed.sha256] = (archive, packed)
        draft.values["snapshot"] = names[workdir]
    return done


def _show(specs: list[Any], packed: dict[str, tuple[Path, Any]]) -> None:
    import json

    from easyscale.service.packing import megabytes

    for _, facts in packed.values():
        print(
            f"snapshot {facts.sha256[:12]}: {facts.files:,} files, {megabytes(facts.size)}, packed "
            f"{megabytes(facts.archive_size)}",
            file=sys.stderr,
        )
    plain = [spec.model_dump(mode="json", exclude_unset=True) for spec in specs]
    print(json.dumps(plain[0] if len(plain) == 1 else plain, indent=2))


def _tell(client: ServiceClient, jobs: list[str], new: bool, json_output: bool) -> None:
    from easyscale.cli.printing import print_json
    from easyscale.service.models import Submitted

    if json_output:
        print_json(Submitted(jobs=jobs, new=new))
        return
    print("\n".join(jobs), flush=True)
    if not new:
        print("This key was used before; these are the jobs of then.", file=sys.stderr)
    try:
        view = client.job(jobs[0])
    except EasyScaleError:
        return  # it is accepted; how it fares is told by other commands
    if view.waits:
        print(f"{view.id} waits: {clean(view.waits)}", file=sys.stderr)


def _wait(client: ServiceClient, jobs: list[str]) -> None:
    from easyscale.cli.verbs import told_end

    codes = [told_end(client.wait(job)) for job in jobs]
    raise typer.Exit(next((code for code in codes if code), 0))
