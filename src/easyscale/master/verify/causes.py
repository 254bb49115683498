"""From what was seen to a cause that people know, and to what they can do about it.

A cause is either shown (the difference went away when the cause was taken away, or came when it was put in) or likely
(it fits what was seen). Both are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.master.verify.compare import Difference
from easyscale.master.verify.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`places`: lines of the script, where they are known."""

    name: str
    advice: str
    shown: bool
    places: tuple[str, ...] = ()


ADVICE = {
    "unseeded": "seed every generator, from the job's seed where it is yours: np.random.default_rng(seed), "
    "random.Random(seed), torch.Generator().manual_seed(seed); state of it that ESTs draw from goes to es.register().",
    "clock": "keep the clock out of what is computed: no seed, file name order, stop condition or schedule from "
    "time.time(); use the global step.",
    "hash order": "iterate sets and dicts keyed by hash in a fixed order: sorted(names).",
    "folder order": "sort what a folder gives: sorted(os.listdir(path)), sorted(Path(path).glob('*')).",
    "surroundings": "a run in other surroundings differed, and no single change of them explains it: run verify again; "
    "where it comes and goes, look for threads of your own, files that others write, and the network.",
    "threads": "fix the number of threads (--threads 1, torch.set_num_threads(n)): it decides how sums are cut.",
    "settings": "leave torch's numerical settings alone after es.init(), or change them at one place in every run.",
    "operator": "the operator has no fixed order of its sums here: replace it, or run it under "
    "torch.use_deterministic_algorithms(True), which names it.",
    "shared state": "ESTs of a worker share the process: state that the loop body changes (module attributes, globals, "
    "generators of your own) must be a buffer, or an object that es.register(name, object, per_est=True) swaps.",
    "unregistered state": "what changes in training and is neither model, optimizer, scheduler nor loader must be "
    "registered: es.register(name, object); a resume then finds it again.",
    "buffers": "change buffers inside forward(): stock DDP copies rank 0's to all ranks before each forward, so what "
    "other code writes into them is lost, or comes from another rank.",
    "ours": "nothing of the script explains it: please report it with the certificate.",
}  # fmt: skip


def likely_cause(difference: Difference, finding: Finding | None, *, widest_agrees: bool, kind: str) -> Cause:
    """Of a plan that differs from stock DDP, which agrees with itself."""
    if "threads" in difference.seen:
        return _cause("threads", "the number of threads changes in the run")
    if "settings" in difference.seen:
        return _cause("settings", "torch's numerical settings change in the run")
    if finding is not None and finding.kind == "buffers":
        return _cause("buffers", "a buffer is changed outside of forward()")
    if kind in ("resume", "schedule") and widest_agrees:
        return _cause("unregistered state", "state that no checkpoint has", _lines(finding))
    if widest_agrees:
        return _cause("shared state", "state that one EST changes and another one sees", _lines(finding))
    return _cause("ours", "unknown")


def own_cause(finding: Finding | None) -> Cause | None:
    """Of a script that differs from itself, where no experiment took the difference away."""
    if finding is not None and finding.kind == "operator":
        return _cause("operator", f"{finding.operator} is not deterministic", _lines(finding))
    return None


def shown_cause(key: str, name: str, places: list[str]) -> Cause:
    return Cause(name=name, advice=ADVICE[key], shown=True, places=tuple(places[:5]))


def _cause(key: str, name: str, places: tuple[str, ...] = ()) -> Cause:
    return Cause(name=name, advice=ADVICE[key], shown=False, places=places)


def _lines(finding: Finding | None) -> tuple[str, ...]:
    return (finding.line,) if finding is not None and finding.line else ()
