"""YOLOv3 (Redmon and Farhadi, 2018): Darknet-53, a pyramid of three scales, three anchors at each.

The pyramid doubles a map by repeating its pixels (`expand`), whose backward is a plain sum and so deterministic on
CUDA; it is the same for stock DDP and ESTs. The loss is in yolov3_loss.py.
"""

from __future__ import annotations

import torch
from benchmarks.zoo.record import Size
from torch import nn

# Width and height in pixels of a picture of 416 x 416, from the paper; by scale, coarse to fine.
ANCHORS = (
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)
CLASSES = {"full": 80, "small": 4}
SIDE = {"full": 416, "small": 64}


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)
    )


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(width, width // 2, 1), convolution(width // 2, width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Darknet(nn.Module):
    """Five stages, each halves the map; the last three maps go to the pyramid."""

    def __init__(self, width: int, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = convolution(3, width, 3)
        self.stages = nn.ModuleList()
        for depth in blocks:
            stage = [convolution(width, 2 * width, 3, stride=2), *(Residual(2 * width) for _ in range(depth))]
            self.stages.append(nn.Sequential(*stage))
            width *= 2

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x, maps = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[-3:]


class Scale(nn.Module):
    """Five convolutions, then the predictions; the map before them goes on to the next finer scale."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.neck = nn.Sequential(
            convolution(inputs, width, 1), convolution(width, 2 * width, 3), convolution(2 * width, width, 1),
            convolution(width, 2 * width, 3), convolution(2 * width, width, 1),
        )  # fmt: skip
        self.head = nn.Sequential(convolution(width, 2 * width, 3), nn.Conv2d(2 * width, outputs, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.neck(x)
        return x, self.head(x)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Nearest-neighbour upsampling by 2."""
    n, c, h, w = x.shape
    return x[:, :, :, None, :, None].expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w)


class YoloV3(nn.Module):
    """Pictures in; for each scale, coarse to fine, raw predictions [picture, anchor, row, column, 5 + classes]."""

    def __init__(self, classes: int, width: int = 32, blocks: tuple[int, ...] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = Darknet(width, blocks)
        fine, middle, coarse = (width * 2**stage for stage in (3, 4, 5))
        outputs = 3 * (5 + classes)
        self.scales = nn.ModuleList(
            [
                Scale(coarse, coarse // 2, outputs),
                Scale(middle + coarse // 4, middle // 2, outputs),
                Scale(fine + middle // 4, fine // 2, outputs),
            ]
        )
        self.links = nn.ModuleList(
            [convolution(coarse // 2, coarse // 4, 1), convolution(middle // 2, middle // 4, 1)]
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        fine, middle, coarse = self.backbone(x)
        kept, first = self.scales[0](coarse)
        kept, second = self.scales[1](torch.cat([doubled(self.links[0](kept)), middle], 1))
        _, third = self.scales[2](torch.cat([doubled(self.links[1](kept)), fine], 1))
        return [self._sorted(raw) for raw in (first, second, third)]

    def _sorted(self, raw: torch.Tensor) -> torch.Tensor:
        n, _, h, w = raw.shape
        return raw.view(n, 3, 5 + self.classes, h, w).permute(0, 1, 3, 4, 2)


def yolov3(size: Size) -> nn.Module:
    if size == "full":
        return YoloV3(CLASSES[size])
    return YoloV3(CLASSES[size], width=4, blocks=(1, 1, 1, 1, 1))
