"""The fingerprint sees every bit, and the record names what a level forbids to differ."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import nn

from easyscale.numerics.fingerprint import fingerprint
from easyscale.numerics.record import collect, differences


def test_the_fingerprint_is_sha256_over_name_dtype_shape_and_bytes_in_order() -> None:
    model = nn.Linear(2, 1)
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + f"|{value.dtype}|{tuple(value.shape)}|".encode() + value.numpy().tobytes())
    assert fingerprint(model) == digest.hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"a": t["a"].clone().view(torch.int32).bitwise_xor(1).view(torch.float32)},  # one bit
        lambda t: {"b": t["a"]},
        lambda t: {"a": t["a"].reshape(3, 2)},
        lambda t: {"a": t["a"].view(torch.int32)},
        lambda t: {"a": -t["a"] * 0},
    ],
)
def test_any_change_of_bits_name_shape_or_type_changes_it(change: Any) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3) * 0}
    assert fingerprint(tensors) != fingerprint(change(tensors))


def test_strides_and_device_do_not_matter_but_order_does() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert fingerprint({"x": x}) == fingerprint({"x": x.to(memory_format=torch.channels_last)})
    assert fingerprint({"x": torch.tensor([1.0]).as_strided((1,), (0,))}) == fingerprint({"x": torch.tensor([1.0])})
    assert fingerprint({"x": x, "y": x}) != fingerprint({"y": x, "x": x})
    assert fingerprint({"x": torch.zeros(0, 3)}) != fingerprint({"x": torch.zeros(3, 0)})


def record(**changes: Any) -> dict[str, Any]:
    base = collect(
        level="D1", ests=4, seed=0, reduction="ddp", device=torch.device("cpu"), split=changes.pop("split", (4,))
    )
    return {**base, **changes}


def test_a_record_agrees_with_itself_on_another_plan_at_d1_only() -> None:
    assert differences(record(), record(split=(2, 2))) == []
    assert differences(record(level="D0"), record(level="D0", split=[2, 2])) != []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("torch", "1.0", "torch version"),
        ("device", "another", "device type"),
        ("threads", 7, "intra-op threads"),
        ("capability", "AVX9", "CPU instruction set"),
        ("ests", 5, "number of ESTs"),
        ("seed", 3, "seed"),
        ("reduction", "tree", "reduction order"),
        ("libm", "0123", "C library's pow"),
    ],
)
def test_each_forbidden_difference_is_named(name: str, value: Any, words: str) -> None:
    (found,) = differences(record(), record(**{name: value}))
    assert words in found


def test_a_changed_flag_is_named() -> None:
    other = record()
    other["flags"] = {**other["flags"], "matmul.allow_tf32": "yes"}
    (found,) = differences(record(), other)
    assert "matmul.allow_tf32" in found
    assert differences(record(), record(numpy="0.1", python="2.7")) == []


def at_d2(**changes: Any) -> dict[str, Any]:
    base = collect(level="D2", ests=4, seed=0, reduction="ddp", device=torch.device("cpu"), split=(4,))
    return {**base, **changes}


@pytest.mark.parametrize(
    "freedom",
    [
        {"torch": "9.9"},
        {"device": "NVIDIA H200", "cuda": "13.0", "cudnn": 91000},
        {"threads": 7},
        {"capability": "AVX9", "isa_limits": {"ATEN_CPU_CAPABILITY": "default"}},
        {"flags": {"mkldnn.enabled": True}},
        {"split": [2, 2]},
    ],
)
def test_at_d2_the_device_type_the_versions_and_the_threads_are_free(freedom: dict[str, Any]) -> None:
    assert differences(at_d2(), at_d2(**freedom)) == []
    assert differences(at_d2(**freedom), at_d2()) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ests", 5, "number of ESTs"),
        ("seed", 3, "seed"),
        ("reduction", "tree", "reduction order"),
        ("d2", 0, "version of the D2 definitions"),
        ("level", "D1", "determinism level"),
    ],
)
def test_at_d2_what_defines_the_job_must_agree(name: str, value: Any, words: str) -> None:
    (found,) = differences(at_d2(), at_d2(**{name: value}))
    assert words in found


def test_a_job_of_one_level_is_not_continued_at_the_other() -> None:
    for ours, theirs in ((at_d2(), record()), (record(), at_d2())):
        (found,) = differences(ours, theirs)
        assert found == f"determinism level is {ours['level']} here and {theirs['level']} there"


def test_the_record_of_a_d2_job_says_which_definitions_it_was_computed_by() -> None:
    from easyscale.numerics.kernels.install import DEFINITION

    assert at_d2()["d2"] == DEFINITION
    assert "d2" not in record()
