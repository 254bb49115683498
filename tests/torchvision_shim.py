"""`import torchvision_shim` makes `import torchvision` work beside a CPU build of torch.

torchvision's wheel is built against CUDA. Without CUDA its compiled operators do not load, and its import then fails
where it describes two of them to torch. The models here use none of them: declaring the two is enough. Where
torchvision loads as it is, nothing is declared.
"""

from __future__ import annotations

import torch

MISSING = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
library = torch.library.Library("torchvision", "FRAGMENT")  # kept: its declarations live as long as it does

try:
    import torchvision
except RuntimeError as problem:
    if "torchvision::nms does not exist" not in str(problem):
        raise
    for name, schema in MISSING.items():
        library.define(name + schema)
    import torchvision

__all__ = ["torchvision"]
