"""Stock DDP over Gloo on CUDA tensors against ESTs, several processes on one GPU. Runs under pytest or by itself.

`python tests/gpu/test_parity.py` prints one table; it needs no pytest.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# ruff: noqa: E402  the two lines above come first
import torch
from torch import nn

from cluster import run_job, run_reference, run_stock
from workloads import CNN, MLP, TRANSFORMER, Augmented, Case, adam, by_hand, cnn, with_easyscale

try:
    import pytest
except ImportError:  # the table below does without
    pytest = None  # type: ignore[assignment]


def wide() -> nn.Module:
    """Several buckets: 21 MiB of gradients."""
    return nn.Sequential(nn.Linear(12, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Dropout(0.1), nn.Linear(2048, 512),
                         nn.Linear(512, 5))  # fmt: skip


GPU: dict[str, Case] = {
    "mlp": replace(MLP, device="cuda"),
    "cnn": replace(CNN, device="cuda"),
    "cnn channels last": replace(CNN, device="cuda", model=lambda: cnn().to(memory_format=torch.channels_last)),
    "transformer": replace(TRANSFORMER, device="cuda"),
    "several buckets": replace(MLP, device="cuda", model=wide, epochs=1),
    "adam, clipping": replace(MLP, device="cuda", optimizer=adam, clip_norm=0.5),
    "autocast bf16": replace(CNN, device="cuda", autocast=torch.bfloat16),
    "autocast fp16, scaler": replace(CNN, device="cuda", autocast=torch.float16, scaler=True),
    "accumulation": replace(CNN, device="cuda", accumulate=2, batch=3, epochs=3),
    "average": replace(CNN, device="cuda", average=True),
    "loader processes, pinned": replace(
        MLP, device="cuda", data=Augmented, loader={"num_workers": 2, "pin_memory": True}
    ),
}
PLANS: list[tuple[tuple[int, ...], str]] = [
    ((4,), "device"), ((4,), "host"), ((2, 2), "auto"), ((2, 1, 1), "auto"), ((1, 1, 1, 1), "auto"),
]  # fmt: skip


@cache
def stock(name: str) -> dict[str, Any]:
    return run_stock(by_hand(GPU[name]), 4)


def agrees(name: str, split: tuple[int, ...], staging: str) -> bool:
    case = replace(GPU[name], init={"staging": staging})
    result, expected = run_job(with_easyscale(case), split, device="cuda"), stock(name)
    return bool(
        result["fingerprint"] == expected["fingerprint"]
        and list(result["losses"].values()) == list(expected["losses"].values())
        and result.get("average") == expected.get("average")
    )


def tree_agrees() -> bool:
    case = replace(GPU["several buckets"], init={"reduction": "tree"})
    plans = [(4,), (3, 1), (1, 1, 1, 1)]
    return len({run_job(with_easyscale(case), plan, device="cuda")["fingerprint"] for plan in plans}) == 1


def without_cuda_states() -> bool:
    """The negative control of CUDA's random states: leave them out, and the bits must differ."""
    train = with_easyscale(GPU["several buckets"])

    def sabotaged() -> Any:
        from easyscale.numerics import rng

        rng._is_cuda = lambda device: False
        return train()

    return bool(run_job(sabotaged, (4,), device="cuda")["fingerprint"] != stock("several buckets")["fingerprint"])


if pytest is not None:

    @pytest.mark.gpu
    @pytest.mark.parametrize(("split", "staging"), PLANS)
    @pytest.mark.parametrize("name", GPU)
    def test_a_gpu_plan_ends_with_stock_ddps_bits(name: str, split: tuple[int, ...], staging: str) -> None:
        assert agrees(name, split, staging)

    @pytest.mark.gpu
    def test_without_cudas_random_states_the_bits_differ() -> None:
        assert without_cuda_states()

    @pytest.mark.gpu
    def test_tree_order_is_the_same_on_every_plan() -> None:
        assert tree_agrees()


def table(rows: list[tuple[str, list[bool], float]], tree: bool, control: bool) -> str:
    heads = ["--engine ddp", *(f"{'+'.join(map(str, s))}, {g}" for s, g in PLANS)]
    lines = [
        "# Parity on one GPU",
        "",
        f"Written by `python tests/gpu/test_parity.py docs/parity-gpu.md` on one {torch.cuda.get_device_name()}, torch",
        f"{torch.__version__}. 4 ESTs; the judge is a hand-written DDP script with 4 processes over Gloo there.",
        "A column is a plan, with where set-aside gradients wait. `same`: the final sha256 and each loss of each EST.",
        "",
        f"| case | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name, cells, _ in rows:
        lines.append(f"| {name} | {' | '.join('same' if c else '**different**' for c in cells)} |")
    lines += ["", f"Tree order on 4, 3+1 and 1+1+1+1 workers: {'same' if tree else '**different**'}."]
    lines += [f"Without CUDA's random states: {'different, as it must be' if control else '**the same**'}.", ""]
    return "\n".join(lines)


def main() -> int:
    from easyscale.numerics.fingerprint import fingerprint  # noqa: F401  imported before the fork

    rows, good = [], True
    for name in GPU:
        began, cells = time.time(), []
        try:
            reference = run_reference(with_easyscale(GPU[name]), 4, device="cuda")["fingerprint"]
            cells.append(reference == stock(name)["fingerprint"])
        except AssertionError as problem:
            print(name, "reference", str(problem)[-1500:], flush=True)
            cells.append(False)
        for split, staging in PLANS:
            try:
                cells.append(agrees(name, split, staging))
            except AssertionError as problem:
                print(name, split, staging, str(problem)[-1500:], flush=True)
                cells.append(False)
        good &= all(cells)
        rows.append((name, cells, time.time() - began))
    tree, control = tree_agrees(), without_cuda_states()
    page = table(rows, tree, control)
    print(page)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page)
    return 0 if good and tree and control else 1


if __name__ == "__main__":
    sys.exit(main())
