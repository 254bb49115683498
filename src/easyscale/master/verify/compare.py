"""Where two runs part: the first global step at which anything that was noted down differs."""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.master.verify.stage import Run

# In the order in which one causes the next.
ORDER = (
    "threads", "settings", "batch", "random.python", "random.numpy", "random.torch", "random.cuda", "loss",
    "parameters", "optimizer",
)  # fmt: skip
WORDS = {
    "threads": "the number of threads", "settings": "torch's numerical settings", "batch": "the mini-batch",
    "random.python": "Python's random state", "random.numpy": "NumPy's random state",
    "random.torch": "torch's random state", "random.cuda": "CUDA's random state", "loss": "the loss",
    "parameters": "the parameters", "optimizer": "the optimizer's state", "model": "the model",
    "end": "the number of steps", "operators": "the operators",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`seen[key]` are the ESTs for which `key` differs, in the order in which one causes the next."""

    step: int
    seen: dict[str, list[int]]

    @property
    def text(self) -> str:
        """The step and the first thing that differs in it: the others follow from it."""
        key, ests = next(iter(self.seen.items()), ("operators", []))
        shared = key in ("model", "end", "parameters", "optimizer", "operators")
        return f"step {self.step}: {WORDS[key]}" + ("" if shared else f" of EST {_ranges(ests)}")


def first_difference(reference: Run, other: Run, begin: int = 0, *, plain: bool = False) -> Difference | None:
    """From global step `begin` on; None where all that both noted down is equal.

    `plain`: a script that nobody seeds may leave a random state as the system made it, and never draw from it.
    """
    order = [key for key in ORDER if not (plain and key.startswith("random."))]
    for step in range(begin, max(reference.steps, other.steps)):
        if step >= min(reference.steps, other.steps):
            return Difference(step=step, seen={"end": []})
        seen = {key: ests for key in order if (ests := _differing(key, reference, other, step))}
        if reference.fingerprints.get(step) != other.fingerprints.get(step):
            seen["model"] = []
        if seen:
            return Difference(step=step, seen=seen)
    return None


def _differing(key: str, reference: Run, other: Run, step: int) -> list[int]:
    if key == "loss":
        ours, theirs = reference.losses.get(step, []), other.losses.get(step, [])
        return [est for est, pair in enumerate(zip(ours, theirs, strict=False)) if repr(pair[0]) != repr(pair[1])]
    left, right = reference.witnesses.get(step, {}), other.witnesses.get(step, {})
    return [est for est in sorted(left.keys() & right.keys()) if left[est].get(key) != right[est].get(key)]


def _ranges(ests: list[int]) -> str:
    return ", ".join(map(str, ests)) if len(ests) < 6 else f"{ests[0]}, {ests[1]}, … {ests[-1]}"
