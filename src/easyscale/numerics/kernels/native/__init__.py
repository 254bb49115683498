"""D2 primitives on the CPU in C: SIMD across outputs, never across a reduction; OpenMP across outputs.

The library is built with the package (`hatch_build.py`), once for each instruction set; `library` loads the one that
torch itself would use here and says once where there is none. All calls go through a plain C ABI.
"""

from easyscale.numerics.kernels.native.elementwise import evaluate
from easyscale.numerics.kernels.native.library import available
from easyscale.numerics.kernels.native.products import KnownProduct, product, sliced_product, view_product
from easyscale.numerics.kernels.native.rows import tree_sum

__all__ = ["KnownProduct", "available", "evaluate", "product", "sliced_product", "tree_sum", "view_product"]
