"""D2 primitives on CUDA, by Triton: tiles, warps and SMs decide speed only.

Importing this package needs neither a GPU nor Triton: the files of kernels (`*_kernels.py`) are imported by the first
call that launches one. `available` says whether there is anything to launch them on.
"""

from easyscale.numerics.kernels.gpu import attention, direct_convolutions, fused, lists, replay
from easyscale.numerics.kernels.gpu.elementwise import evaluate
from easyscale.numerics.kernels.gpu.launch import available
from easyscale.numerics.kernels.gpu.products import product
from easyscale.numerics.kernels.gpu.rows import tree_sum
from easyscale.numerics.kernels.gpu.sliced_convolutions import sliced_convolution, sliced_weight_gradient
from easyscale.numerics.kernels.gpu.slices import sliced_product
from easyscale.numerics.kernels.gpu.views import view_product

__all__ = [
    "attention", "available", "direct_convolutions", "evaluate", "fused", "lists", "product", "replay",
    "sliced_convolution", "sliced_product", "sliced_weight_gradient", "tree_sum", "view_product",
]  # fmt: skip
