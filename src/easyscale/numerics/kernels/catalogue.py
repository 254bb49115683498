"""All D2 forms: importing the modules that define them fills the table."""

from __future__ import annotations

from easyscale.numerics.kernels import (  # noqa: F401  importing fills the table
    bags,
    convolutions,
    counting,
    ctc,
    distances,
    elementwise,
    exact,
    foreach,
    gamma,
    indexing,
    interpolation,
    losses,
    margins,
    norms,
    orthogonal,
    pooling,
    products,
    randomness,
    reductions,
    sampling,
    softmax,
    sorting,
)
from easyscale.numerics.kernels.registry import FORMS

__all__ = ["FORMS"]
