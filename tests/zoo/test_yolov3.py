"""YOLOv3's loss: who is responsible for a box, what a perfect prediction costs, what is ignored."""

from __future__ import annotations

import pytest
import torch
from benchmarks.zoo.yolov3 import ANCHORS, doubled
from benchmarks.zoo.yolov3_loss import best_anchor, overlap, owners, scale_loss

ANCHOR = torch.tensor(ANCHORS, dtype=torch.float32) / 416
GRID = torch.tensor([4, 4])


def perfect(box: list[float], anchor: int) -> torch.Tensor:
    """Raw predictions of the middle scale on 4 x 4 cells and 2 classes that say: this box, and nothing else."""
    kind, x, y, w, h = box
    raw = torch.full((1, 3, 4, 4, 7), -20.0)
    raw[..., :4] = 0
    column, row = int(x * 4), int(y * 4)
    cell = raw[0, anchor, row, column]
    cell[:2] = torch.logit(torch.tensor([x * 4 - column, y * 4 - row]))
    cell[2:4] = (torch.tensor([w, h]) / ANCHOR[1, anchor]).log()
    cell[4] = cell[5 + int(kind)] = 20.0
    return raw


def test_upsampling_repeats_each_pixel_as_torchs_nearest_does() -> None:
    x = torch.randn(2, 3, 5, 4)
    assert torch.equal(doubled(x), torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest"))


def test_the_anchor_of_the_closest_form_is_responsible() -> None:
    boxes = torch.cat([torch.zeros(1, 9, 3), ANCHOR.view(1, 9, 2)], 2)
    assert best_anchor(boxes, ANCHOR.flatten(0, 1)).tolist() == [list(range(9))]


def test_a_box_belongs_to_the_cell_of_its_centre_and_no_box_to_none() -> None:
    true = torch.tensor([[[1, 0.6, 0.3, 0.1, 0.1], [0, 0.0, 0.0, 0.0, 0.0]]])
    owner = owners(true, torch.tensor([[2, 0]]), GRID)
    assert (owner >= 0).nonzero().tolist() == [[0, 2, 1, 2]]  # picture, anchor, row, column


def test_of_two_boxes_in_one_place_the_last_counts() -> None:
    true = torch.tensor([[[1, 0.6, 0.3, 0.1, 0.1], [0, 0.6, 0.3, 0.1, 0.1]]])
    assert owners(true, torch.tensor([[2, 2]]), GRID)[0, 2, 1, 2] == 1


def test_a_perfect_prediction_costs_nothing_and_a_wrong_class_costs() -> None:
    box = [1, 0.6, 0.3, 0.15, 0.11]
    true = torch.tensor([[box]])
    best = torch.tensor([[4]])  # the middle scale's second
    raw = perfect(box, 1)
    assert scale_loss(raw, true, best, ANCHOR, 1) < 1e-4
    raw[0, 1, 1, 2, 5:] *= -1
    assert scale_loss(raw, true, best, ANCHOR, 1) > 30


def test_a_box_of_another_scale_asks_nothing_of_this_one_but_silence() -> None:
    true = torch.tensor([[[1, 0.6, 0.3, 0.15, 0.11]]])
    silent = torch.full((1, 3, 4, 4, 7), -20.0)
    assert scale_loss(silent, true, torch.tensor([[0]]), ANCHOR, 1) < 1e-4
    assert scale_loss(-silent, true, torch.tensor([[0]]), ANCHOR, 1) > 100


def test_a_prediction_that_overlaps_a_box_of_another_scale_is_ignored() -> None:
    box = [1, 0.6, 0.3, 0.15, 0.11]
    raw = perfect(box, 1)
    elsewhere = torch.tensor([[[0, 0.1, 0.9, 0.15, 0.11]]])
    assert scale_loss(raw, torch.tensor([[box]]), torch.tensor([[0]]), ANCHOR, 1) < 1e-4
    assert scale_loss(raw, elsewhere, torch.tensor([[0]]), ANCHOR, 1) == pytest.approx(20, rel=1e-3)


def test_overlap_is_intersection_over_union() -> None:
    boxes = torch.tensor([0.5, 0.5, 0.2, 0.2]).view(1, 1, 1, 1, 4)
    true = torch.tensor([[[0, 0.6, 0.5, 0.2, 0.2], [0, 0.0, 0.0, 0.0, 0.0]]])
    assert overlap(boxes, true).item() == pytest.approx(1 / 3)
