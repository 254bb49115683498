"""YOLOv3's loss, and generated pictures with boxes of COCO's shape.

A box is the business of the anchor, of all nine, whose form fits it best, in the cell where its centre lies. There the
coordinates pay squared errors (more for small boxes), the classes and the objectness binary cross entropies. Elsewhere
only the objectness pays, unless the predicted box overlaps a true one by more than half.

Which cell owns which box is found by comparing with all cells, not by scattering: comparisons have one result on
every device, in any order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.zoo.pictures import Pictures
from benchmarks.zoo.record import Size
from benchmarks.zoo.yolov3 import ANCHORS, CLASSES, SIDE
from torch import nn
from torch.utils.data import Dataset

MOST_BOXES = 8
IGNORED = 0.5  # overlap with a true box from which a prediction without an object pays nothing


class Boxes(Dataset[Any]):
    """A picture and its boxes [class, centre x, centre y, width, height] in shares of the side; width 0 is no box."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        self.pictures = Pictures(count, side, classes)
        g = torch.Generator().manual_seed(4)
        kind = torch.randint(classes, (count, MOST_BOXES, 1), generator=g).float()
        sides = 0.04 + 0.76 * torch.rand(count, MOST_BOXES, 2, generator=g) ** 2
        centre = sides / 2 + (1 - sides) * torch.rand(count, MOST_BOXES, 2, generator=g)
        number = torch.randint(1, MOST_BOXES + 1, (count, 1, 1), generator=g)
        there = torch.arange(MOST_BOXES).view(1, -1, 1) < number
        self.boxes = torch.cat([kind, centre, sides], 2) * there

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[i][0]
        return picture, self.boxes[i]


def boxes(size: Size, count: int) -> Boxes:
    return Boxes(count, SIDE[size], CLASSES[size])


def found(model: nn.Module, batch: Any) -> torch.Tensor:
    pictures, true = batch
    predictions = model(pictures)
    anchors = torch.tensor(ANCHORS, dtype=torch.float32, device=pictures.device) / SIDE["full"]
    best = best_anchor(true, anchors.flatten(0, 1))
    losses = [scale_loss(raw, true, best, anchors, s) for s, raw in enumerate(predictions)]
    return torch.stack(losses).sum() / len(pictures)


def best_anchor(true: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """For each box the number, of nine, of the anchor that overlaps it most when both lie on one centre."""
    size = true[..., None, 3:5]
    shared = torch.minimum(size, anchors).prod(-1)
    return (shared / (size.prod(-1) + anchors.prod(-1) - shared)).argmax(-1)


def scale_loss(
    raw: torch.Tensor, true: torch.Tensor, best: torch.Tensor, anchors: torch.Tensor, scale: int
) -> torch.Tensor:
    rows, columns = raw.shape[2:4]
    grid = torch.tensor([columns, rows], device=raw.device)
    own = anchors[scale]
    owner = owners(true, best - 3 * scale, grid)
    has = owner >= 0
    picture = torch.arange(len(raw), device=raw.device).view(-1, 1, 1, 1)
    box = true[picture, owner.clamp(min=0)]  # [picture, anchor, row, column, 5]
    at = box[..., 1:3] * grid
    form = (box[..., 3:5].clamp(min=1e-6) / own[:, None, None]).log()
    weight = has * (2 - box[..., 3] * box[..., 4])
    place = (raw[..., 0:2].sigmoid() - (at - at.floor())).square().sum(-1)
    shape = (raw[..., 2:4] - form).square().sum(-1)
    with torch.no_grad():
        pays = has | (overlap(decoded(raw, own, grid), true) < IGNORED)
    thing = F.binary_cross_entropy_with_logits(raw[..., 4], has.to(raw.dtype), reduction="none")
    kinds = (box[..., :1] == torch.arange(raw.shape[-1] - 5, device=raw.device)).to(raw.dtype)
    kind = F.binary_cross_entropy_with_logits(raw[..., 5:], kinds, reduction="none").sum(-1)
    return (weight * (place + shape) + pays * thing + has * kind).sum()


def owners(true: torch.Tensor, anchor: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """The number of the box that each anchor of each cell is responsible for, the last of several; -1 for none."""
    columns, rows = grid.tolist()
    cell = (true[..., 1:3] * grid).long()

    def is_at(place: torch.Tensor, count: int, dim: int) -> torch.Tensor:
        """[picture, box] against one axis of [picture, box, anchor, row, column]."""
        axis = torch.arange(count, device=true.device).view([-1 if d == dim else 1 for d in range(5)])
        return place[..., None, None, None] == axis

    there = (true[..., 3] > 0)[..., None, None, None]
    mine = is_at(anchor, 3, 2) & is_at(cell[..., 1], rows, 3) & is_at(cell[..., 0], columns, 4) & there
    number = torch.arange(true.shape[1], device=true.device).view(1, -1, 1, 1, 1)
    return torch.where(mine, number, -1).amax(1)


def decoded(raw: torch.Tensor, own: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Predicted boxes [.., centre x, centre y, width, height] in shares of the side."""
    rows, columns = raw.shape[2:4]
    x = torch.arange(columns, device=raw.device).expand(rows, columns)
    y = torch.arange(rows, device=raw.device).view(-1, 1).expand(rows, columns)
    centre = (raw[..., 0:2].sigmoid() + torch.stack([x, y], -1)) / grid
    return torch.cat([centre, raw[..., 2:4].clamp(max=10).exp() * own[:, None, None]], -1)


def overlap(boxes: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """For each predicted box its largest intersection over union with a true box of its picture."""
    flat = boxes.flatten(1, 3)[:, :, None]  # [picture, prediction, 1, 4]
    other = true[:, None, :, 1:5]
    low = torch.maximum(flat[..., :2] - flat[..., 2:] / 2, other[..., :2] - other[..., 2:] / 2)
    high = torch.minimum(flat[..., :2] + flat[..., 2:] / 2, other[..., :2] + other[..., 2:] / 2)
    shared = (high - low).clamp(min=0).prod(-1)
    union = flat[..., 2:].prod(-1) + other[..., 2:].prod(-1) - shared
    return (shared / union.clamp(min=1e-9)).amax(-1).view(boxes.shape[:-1])
