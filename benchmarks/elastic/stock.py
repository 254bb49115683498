"""The measured script as people write it for `torchrun`: stock DDP that leaves a checkpoint on SIGTERM.

    torchrun --nproc-per-node N stock.py MODEL FOLDER

Starts from FOLDER/checkpoint.pt if there is one. Rank 0 appends the time of each global step to FOLDER/times.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from models import model_of, state_bytes
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

told: list[int] = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
torch.set_num_threads(1)
dist.init_process_group("gloo")
name, folder = sys.argv[1], Path(sys.argv[2])
model, optimizer, x, y = model_of(name)
step = 0
if (folder / "checkpoint.pt").exists():
    saved = torch.load(folder / "checkpoint.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
ddp = DistributedDataParallel(model)
times = (folder / "times").open("a", buffering=1)
while True:
    F.cross_entropy(ddp(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        times.write(f"{step} {time.time()} {os.environ['WORLD_SIZE']}\n")
    step += 1
    stop = torch.tensor(len(told))
    dist.all_reduce(stop, dist.ReduceOp.MAX)
    if stop:
        break
if dist.get_rank() == 0:
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(saved, folder / "checkpoint.part")
    (folder / "checkpoint.part").rename(folder / "checkpoint.pt")
    (folder / "bytes").write_text(str(state_bytes(model, optimizer)))
dist.barrier()
dist.destroy_process_group()
