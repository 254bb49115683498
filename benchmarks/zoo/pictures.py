"""ShuffleNetV2, ResNet50, VGG19 and Swin-T of torchvision on generated pictures of ImageNet's shape.

Where a stock layer has no deterministic backward on CUDA, its equivalent stands in, for stock DDP and ESTs alike:

- ResNet50's adaptive average pool over a map of 7 x 7 is `AvgPool2d(7)`.
- VGG19's adaptive average pool from 7 x 7 to 7 x 7 leaves its input as it is: `Identity`.

torchvision is imported when a model is built, so that the other models of the zoo do without it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.zoo.record import Size
from torch import nn
from torch.utils.data import Dataset


class Pictures(Dataset[Any]):
    """Sample i is a window of one tape of noise, chosen by its class, and flipped by chance like training data.

    No copy and no random generator is made for a sample: a batch costs little more than its stacking.
    """

    def __init__(self, count: int, side: int, classes: int) -> None:
        self.count, self.side, self.classes = count, side, classes
        self.tape = torch.randn(3 * side * side + 8 * classes, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        label = i * 7919 % self.classes
        begin = 8 * label + i % 8
        picture = self.tape[begin : begin + 3 * self.side * self.side].view(3, self.side, self.side)
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture, label


def pictures(size: Size, count: int) -> Pictures:
    return Pictures(count, 224, 1000) if size == "full" else Pictures(count, 32, 10)


def classification(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def shufflenet(size: Size) -> nn.Module:
    """Version 2, width 1.0. It averages with `mean`, which is deterministic."""
    from torchvision.models import ShuffleNetV2, shufflenet_v2_x1_0

    if size == "full":
        return shufflenet_v2_x1_0()
    return ShuffleNetV2([2, 2, 2], [8, 16, 32, 64, 64], num_classes=10)


def resnet50(size: Size) -> nn.Module:
    from torchvision.models import ResNet, resnet50
    from torchvision.models.resnet import Bottleneck

    model = resnet50() if size == "full" else ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10, width_per_group=8)
    model.avgpool = nn.AvgPool2d(7 if size == "full" else 1)
    return model


def vgg19(size: Size) -> nn.Module:
    """Small: the same 16 convolutions and 3 linear layers, with dropout, on a last map of 1 x 1."""
    from torchvision.models import vgg19
    from torchvision.models.vgg import cfgs, make_layers

    if size == "full":
        model = vgg19()
        model.avgpool = nn.Identity()
        return model
    narrow = [width if isinstance(width, str) else width // 16 for width in cfgs["E"]]
    return nn.Sequential(
        make_layers(narrow), nn.Flatten(), nn.Linear(32, 48), nn.ReLU(True), nn.Dropout(), nn.Linear(48, 48),
        nn.ReLU(True), nn.Dropout(), nn.Linear(48, 10),
    )  # fmt: skip


def swin(size: Size) -> nn.Module:
    """The tiny one, with its stochastic depth. Its average pool to 1 x 1 is a mean, which is deterministic."""
    from torchvision.models import SwinTransformer, swin_t

    if size == "full":
        return swin_t()
    return SwinTransformer([4, 4], 12, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.2, num_classes=10)
