"""How fast state could travel: Gloo's own broadcast between processes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

MIB = 128


def gigabytes_a_second(receivers: int) -> float:
    """From one process to so many others, the best of some times; until the last of them has it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__)), folder, str(receivers + 1)]
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(receivers + 1)
        ]
        said = [process.communicate()[0] for process in processes]
    return MIB * 2**20 / 1e9 / float(min(json.loads(said[0])))


def main() -> None:
    import torch.distributed as dist

    folder, ranks, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/meet", ranks), rank=rank, world_size=ranks)
    data, seconds = torch.ones(MIB * 2**20, dtype=torch.uint8), []
    for _ in range(6):
        dist.barrier()
        began = time.perf_counter()
        dist.broadcast(data, 0)
        dist.barrier()
        seconds.append(time.perf_counter() - began)
    dist.destroy_process_group()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
