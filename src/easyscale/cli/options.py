"""The options of `easyscale run`, in the groups in which docs/cli.md explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from easyscale.core.spec import Engine, Level

# ---------------------------------------------------------------------------------------- what runs

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, or a module's name with -m.")]
Args = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script untouched.")]
Ests = Annotated[int, typer.Option(min=1, help="Logical workers (ESTs). They decide the result: keep the number.")]
Module = Annotated[bool, typer.Option("--module", "-m", help="SCRIPT names a module, as in python -m.")]
EngineName = Annotated[
    Engine, typer.Option(help="est: ESTs. ddp: the stock reference, one DistributedDataParallel process each.")
]
Name = Annotated[str | None, typer.Option(help="The job's name, the first part of its id. Default: the script's.")]

# ---------------------------------------------------------------------------------------- on what

Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N|LEAST:MOST",
        help="Processes that run the ESTs. Default: one per GPU, else one per core, at most ESTs.",
    ),
]
Split = Annotated[str | None, typer.Option(metavar="N,N,...", help="ESTs of each worker, such as 2,1,1.")]
ScheduleText = Annotated[
    str | None,
    typer.Option(metavar="STEP:WORKERS,...", help="Workers by global step: 0:4,10:2,20:1, or 20:2+1+1."),
]
Rebalance = Annotated[
    bool | None,
    typer.Option(
        "--rebalance/--no-rebalance",
        help="ESTs move away from workers that turn out slower. Default: with --workers LEAST:MOST.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda", help="auto: CUDA where there is one. At D2 also one for each worker: cuda,cpu."
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each worker. On a CPU they decide bits.")]
Determinism = Annotated[
    Level,
    typer.Option(
        case_sensitive=False, help="D0: same plan, same bits. D1: any number of workers. D2: any device types too."
    ),
]

# ---------------------------------------------------------------------------------------- where

Backend = Annotated[Literal["local", "ray"], typer.Option(help="What starts workers: this machine, or a Ray cluster.")]
RayAddress = Annotated[
    str | None, typer.Option(metavar="auto|HOST:PORT", help="The Ray cluster. Default: auto, that of this machine.")
]
Types = Annotated[
    str | None,
    typer.Option(metavar="TYPE,...", help="Device types in the Ray cluster that may be used, the best first."),
]
RayLabels = Annotated[str | None, typer.Option(metavar="NAME=VALUE,...", help="Only nodes with these labels.")]
RayWait = Annotated[bool, typer.Option("--ray-wait", help="Also for types that no node has yet: one may come.")]

# ---------------------------------------------------------------------------------------- limits and faults

Timeout = Annotated[float, typer.Option(help="Seconds without an answer after which a peer is lost.")]
Heartbeat = Annotated[float, typer.Option(help="Seconds without a sign of life after which a worker is lost.")]
StartLimit = Annotated[float, typer.Option(help="Seconds that a new worker has until it can join.")]
Grace = Annotated[float, typer.Option(help="Seconds that a worker has to hand over and leave after SIGTERM.")]
Orphan = Annotated[float, typer.Option(help="Seconds without a master after which workers leave by themselves.")]
MaxRestarts = Annotated[int, typer.Option(min=0, help="Starts from the last checkpoint after a failure.")]
RestartMaster = Annotated[bool, typer.Option("--restart-master", help="Start the master again if it dies.")]
LogLimit = Annotated[
    float | None, typer.Option(metavar="MB", help="Of each log of a worker; the oldest part of a longer one goes.")
]
ProcessLimit = Annotated[
    int | None, typer.Option(min=1, help="Processes of all workers together; a job with more is ended.")
]
MemoryLimit = Annotated[
    float | None, typer.Option(metavar="GB", help="Address space of a worker process without a GPU.")
]
FileLimit = Annotated[int | None, typer.Option(min=16, help="Files that a worker process may have open.")]
Listen = Annotated[str, typer.Option(metavar="HOST", help="The address on which the master listens.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; print the job's id.")]

# ---------------------------------------------------------------------------------------- checkpoints

CheckpointDir = Annotated[Path | None, typer.Option(help="Where checkpoints go.")]
CheckpointEvery = Annotated[int | None, typer.Option(min=1, help="Global steps between checkpoints.")]
CheckpointSeconds = Annotated[float | None, typer.Option(min=0, help="Seconds between checkpoints.")]
CheckpointKeep = Annotated[int, typer.Option(min=1, help="The newest checkpoints that stay.")]
Resume = Annotated[
    str | None,
    typer.Option(metavar="latest|auto|PATH", help="Go on from a checkpoint; auto starts anew if there is none."),
]

# ---------------------------------------------------------------------------------------- what it leaves behind

MaxSteps = Annotated[int | None, typer.Option(min=1, help="End after so many global steps.")]
Report = Annotated[Path | None, typer.Option(help="Write a JSON report of the run.")]
FingerprintEvery = Annotated[int | None, typer.Option(min=1, help="Global steps between fingerprints of the model.")]
MetricsDir = Annotated[Path | None, typer.Option(help="Write metrics.jsonl and TensorBoard files.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the script's own output, and errors.")]

# Set by a process that starts this one as a job's front ("front:ID") or master ("master:ID"); see cli/front.py.
Internal = Annotated[str | None, typer.Option("--internal", hidden=True)]
