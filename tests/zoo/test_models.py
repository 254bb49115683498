"""The zoo's models have the published sizes; its data is the same for every process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.zoo import MODELS
from benchmarks.zoo.language import CLS, PAD, SEP, Questions
from torch import nn

import torchvision_shim  # noqa: F401  before anything imports torchvision

# As published. ELECTRA: 109,483,009 of the base discriminator, and the generator's without the shared tables.
PARAMETERS = {
    "shufflenetv2": 2_278_604, "resnet50": 25_557_032, "vgg19": 143_667_240, "yolov3": 61_949_149,
    "neumf": 31_832_577, "bert": 108_893_186, "electra": 109_483_009 + 9_904_954, "swin": 28_288_354,
}  # fmt: skip
BATCHES = {
    "shufflenetv2": 128, "resnet50": 64, "vgg19": 32, "yolov3": 8, "neumf": 1024, "bert": 8, "electra": 8, "swin": 32,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_full_size_and_the_batch_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        model = MODELS[name].build("full")
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert MODELS[name].batch_of("full") == BATCHES[name]
    refuse_nondeterministic_layers(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    """Stock DDP refuses others."""
    work = MODELS[name]
    model = work.build("small")
    work.loss(model, next(iter(torch.utils.data.DataLoader(work.data("small", 4), batch_size=4)))).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def refuse_nondeterministic_layers(model: nn.Module) -> None:
    """On CUDA the backward of an adaptive pool is not deterministic, unless to one pixel: that is a mean."""
    pools = [m for m in model.modules() if isinstance(m, nn.AdaptiveAvgPool2d)]
    assert all(pool.output_size in (1, (1, 1)) for pool in pools)
    assert not any(isinstance(m, nn.Upsample) for m in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_data_is_the_same_in_every_process(name: str) -> None:
    def sample() -> Any:
        torch.manual_seed(5)
        return MODELS[name].data("small", 12)[7]

    first, second = sample(), sample()
    parts = [list(s.values()) if isinstance(s, dict) else list(s) for s in (first, second)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*parts, strict=True))


def test_a_question_is_followed_by_a_context_with_its_answer() -> None:
    for sample in (Questions(40, 150, 24)[i] for i in range(40)):
        ids, kind, length = sample["input_ids"], sample["token_type_ids"], int(sample["attention_mask"].sum())
        assert ids[0] == CLS
        assert (ids == SEP).sum() == 2
        assert ids[length - 1] == SEP
        assert (ids[length:] == PAD).all()
        context = kind.nonzero().flatten()
        assert ids[context[0] - 1] == SEP
        assert context[0] <= sample["start_positions"] <= sample["end_positions"] < length - 1
