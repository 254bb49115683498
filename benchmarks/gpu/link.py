"""What the link between host and GPU gives: the floor under rows that wait in host memory.

    python benchmarks/gpu/link.py

Pinned memory, pieces of several sizes, each direction alone and both at once; and the host's time to launch one copy.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from parts.workload import save

TOTAL = 1 << 30


def main() -> None:
    rows = [measure(size) for size in (256 << 10, 1 << 20, 4 << 20, 8 << 20, 25 << 20, 256 << 20)]
    for row in rows:
        print("  ".join(f"{key} {value:.1f}" for key, value in row.items() if isinstance(value, float)))
    save("link", rows, ("piece_mib",))


def measure(size: int) -> dict[str, Any]:
    count = TOTAL // size
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def copies(up: bool, down: bool) -> tuple[float, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            if up:
                with torch.cuda.stream(streams[0]):
                    device[0].copy_(host[0], non_blocking=True)
            if down:
                with torch.cuda.stream(streams[1]):
                    host[1].copy_(device[1], non_blocking=True)
        launched = time.perf_counter() - began
        torch.cuda.synchronize()
        return time.perf_counter() - began, launched

    copies(True, True)
    up, launch = copies(True, False)
    moved = count * size / 1e9
    return {
        "piece_mib": size / 2**20, "to_device_gbs": moved / up, "to_host_gbs": moved / copies(False, True)[0],
        "both_gbs": 2 * moved / copies(True, True)[0], "launch_us": launch / count * 1e6,
        "device": torch.cuda.get_device_name(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
