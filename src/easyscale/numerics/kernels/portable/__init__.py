"""D2 primitives in torch operators that have the same bits on every device: slow, and obvious.

Only additions, multiplications, divisions and square roots of fp64 (one operator each, so nothing can be fused),
whole-number arithmetic, comparisons, selection and moving of bytes are used.
"""

from easyscale.numerics.kernels.portable.elementwise import evaluate
from easyscale.numerics.kernels.portable.products import product, sliced_product
from easyscale.numerics.kernels.portable.rows import tree_sum

__all__ = ["evaluate", "product", "sliced_product", "tree_sum"]
