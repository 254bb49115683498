import pytest

from easyscale.core import errors
from easyscale.core.errors import EasyScaleError

TREE = {
    "UsageError": "EasyScaleError", "PlanError": "UsageError", "LoopError": "UsageError",
    "UnsupportedError": "UsageError", "PromiseError": "EasyScaleError", "RecordMismatchError": "PromiseError",
    "NondeterministicError": "PromiseError", "UnusedParameterError": "PromiseError",
    "LoaderLengthError": "PromiseError", "CheckpointError": "EasyScaleError", "NonFiniteError": "EasyScaleError",
    "WorkerLostError": "EasyScaleError",
}  # fmt: skip


def test_the_tree_of_errors_is_the_one_that_the_docstring_draws() -> None:
    found = {
        name: thing.__bases__[0].__name__
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, EasyScaleError) and thing is not EasyScaleError
    }
    assert found == TREE
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in TREE)


@pytest.mark.parametrize("name", sorted(TREE))
def test_each_error_says_what_happened_why_and_what_to_do_now(name: str) -> None:
    error = getattr(errors, name)("It broke.", "it was old.", "buy another.")
    assert (error.what, error.why, error.now) == ("It broke.", "it was old.", "buy another.")
    assert str(error) == "It broke.\n  why: it was old.\n  now: buy another."
