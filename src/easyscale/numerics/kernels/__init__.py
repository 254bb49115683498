"""D2 operators: each output element is a fixed sequence of IEEE-754 operations, the same on every device.

    formulas    elementwise functions, written down once as operations on fp64 (standard library only)
    primitives  product, sums and elementwise evaluation, by the fastest implementation that is here:
                native (C), gpu (Triton), portable (torch)
    weights     slices of parameters, kept during a global step
    products, convolutions, reductions, norms, losses, elementwise, pooling, indexing, random
                aten operators as forms of the primitives, filled into the table of `registry`
    safe        stock operators that have the same bits everywhere as they are
    install     puts all of it under the user's model through torch's dispatcher, and refuses what has no D2 form

The definitions are in docs/numerics.md. May import torch and `core`.
"""
