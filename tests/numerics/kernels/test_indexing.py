"""Sums by place: the forms for CUDA, called on CPU tensors, against stock's CPU kernels and against plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.numerics.kernels.isa_samples import numbers, positions
from torch import Tensor

from easyscale.numerics.kernels import bags, indexing, ordered

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return numbers(torch.Size(shape).numel(), dtype, seed, special=False).reshape(shape)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def test_rows_are_added_one_after_the_other_in_order() -> None:
    destination, source, index = make(5, 3), make(40, 3, seed=2), positions(40, 5)
    wanted = [[torch.tensor(v) for v in row] for row in destination.tolist()]
    for position, place in enumerate(index.tolist()):
        for column in range(3):
            wanted[place][column] = wanted[place][column] + source[position, column]
    made = ordered.add_rows(destination.clone(), index, source)
    assert made.tolist() == [[v.item() for v in row] for row in wanted]


def test_another_order_is_seen() -> None:
    """Negative control."""
    destination, source, index = make(5, 300), make(400, 300, seed=2), positions(400, 5)
    made = ordered.add_rows(destination.clone(), index, source)
    assert not torch.equal(made, ordered.add_rows(destination.clone(), index.flip(0), source.flip(0)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_index_add(dtype: torch.dtype, dim: int) -> None:
    destination, index = make(9, 8, 7, dtype=dtype), positions(60, 7)
    shape = [9, 8, 7]
    shape[dim] = 60
    source = make(*shape, dtype=dtype, seed=3)
    wanted = destination.float().index_add(dim, index, source.float()).to(dtype)
    if dtype is torch.float64:
        wanted = destination.index_add(dim, index, source)
    assert same(indexing.index_add(destination, dim, index, source), wanted)
    if dtype not in (torch.bfloat16, torch.float16):
        assert same(indexing.index_add_in_order(destination, dim, index, source), wanted)


def test_index_add_rounds_the_product_with_alpha() -> None:
    destination, source, index = make(9, 50), make(60, 50, seed=2), positions(60, 9)
    made = indexing.index_add(destination, 0, index, source, alpha=0.1)
    assert same(made, destination.index_add(0, index, source * 0.1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("expanded", [False, True])
def test_scatter_add(dtype: torch.dtype, dim: int, expanded: bool) -> None:
    destination, source = make(20, 30, dtype=dtype), make(70, 80, dtype=dtype, seed=2)
    index = positions(70 * 30, 20).view(70, 30) if dim == 0 else positions(20 * 80, 30).view(20, 80)
    if expanded:
        index = index[:, :1].expand(index.shape) if dim == 0 else index[:1].expand(index.shape)
    source = source[: index.shape[0], : index.shape[1]].contiguous()
    wide = torch.promote_types(dtype, torch.float32)
    destination, source = destination.to(wide), source.to(wide)
    wanted = destination.scatter_add(dim, index, source)
    assert same(indexing.scatter_in_order(destination, dim, index, source, torch.add), wanted)
    assert same(indexing.scatter_add(destination.to(dtype), dim, index, source.to(dtype)), wanted.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    destination, source, index = make(20, 30, dtype=dtype), make(50, 30, dtype=dtype, seed=2), positions(1500, 20)
    options = {"reduce": reduce, "include_self": include_self}
    index = index.view(50, 30)
    made = indexing.scatter_reduce_in_order(destination, 0, index, source, **options)
    wanted = destination.scatter_reduce(0, index, source, **options)
    assert torch.equal(made, wanted)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_of_two_zeros_the_first_stays(reduce: str) -> None:
    destination, source = torch.tensor([0.0, -0.0, -0.0, -1.0]), torch.tensor([-0.0, 0.0, -0.0, -0.0, 0.0, torch.nan])
    index = torch.tensor([0, 1, 2, 3, 3, 0])
    made = indexing.scatter_reduce_in_order(destination, 0, index, source, reduce)
    wanted = destination.scatter_reduce(0, index, source, reduce)
    assert same(made[1:], wanted[1:])
    assert made[0].isnan()


def test_values_that_lie_in_the_tensor_itself_are_read_before_it_is_changed() -> None:
    into, at = make(6, 7), positions(6, 6)
    wanted = into.index_put((at,), into.clone(), accumulate=True)
    indexing.index_put_impl_(into, [at], into, True)
    assert same(into, wanted)


def test_rows_of_another_shape_or_dtype_are_refused() -> None:
    for source in (make(4, 2), make(3, 3), make(4, 3).double()):
        with pytest.raises(RuntimeError, match="cannot add"):
            ordered.add_rows(make(5, 3), positions(4, 5), source)
    with pytest.raises(RuntimeError, match="an index of shape"):
        indexing.scatter_in_order(make(2, 3), 0, positions(20, 2).view(4, 5), make(4, 5), torch.add)


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_scatter_with_a_reduction() -> None:
    destination, source, index = make(20, 30), make(50, 30, seed=2), positions(1500, 20).view(50, 30)
    for reduce in ("add", "multiply"):
        made = indexing.scatter_in_order(destination, 0, index, source, indexing._OPERATIONS[reduce])
        assert same(made, destination.scatter(0, index, source, reduce=reduce))
        made = indexing.scatter_number_by(destination, 0, index, 1.1, reduce=reduce)
        assert same(made, destination.scatter(0, index, 1.1, reduce=reduce))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_put_accumulating(dtype: torch.dtype) -> None:
    destination = make(6, 7, 8, dtype=dtype)
    a, b = positions(40, 6), positions(40, 7, seed=4)
    for indices, shape in (([a], (40, 7, 8)), ([a, b], (40, 8)), ([None, b], (6, 40, 8)), ([a, None, b % 5], (40, 7)),
                           ([a.view(8, 5) - 6], (8, 5, 7, 8)), ([a], (8,))):  # fmt: skip
        values = make(*shape, dtype=dtype, seed=5)
        wanted = aten.index_put(destination, indices, values, True)
        assert same(indexing.index_put_in_order(destination, indices, values), wanted)


def test_index_put_and_put_into_places() -> None:
    destination, at, values = make(6, 7), positions(30, 42) - 42, make(30, seed=2)
    assert same(indexing.put_(destination.clone(), at, values, True), destination.put(at, values, accumulate=True))
    into, rows = destination.clone(), positions(30, 6)
    indexing.index_put_impl_(into, [rows], make(30, 7, seed=2), True)
    assert same(into, destination.index_put((rows,), make(30, 7, seed=2), accumulate=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [-1, 3])
def test_embedding_backward(dtype: torch.dtype, padding: int) -> None:
    gradient, at = make(5, 60, 16, dtype=dtype), positions(300, 13).view(5, 60)
    made = indexing.embedding_backward_in_order(gradient, at, 15, padding)
    assert same(made, aten.embedding_dense_backward(gradient, at, 15, padding, False))
    counts = torch.bincount(at.flatten(), minlength=15)[at].to(dtype)[..., None]
    assert same(
        indexing.embedding_dense_backward(gradient, at, 15, padding, True),
        aten.embedding_dense_backward(gradient / counts, at, 15, padding, False),
    )


def test_nothing_to_add() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    assert same(indexing.index_add_in_order(make(3, 4), 0, empty, torch.empty(0, 4)), make(3, 4))
    assert same(indexing.scatter_in_order(make(3, 4), 0, empty.view(0, 4), torch.empty(0, 4), torch.add), make(3, 4))
    assert not indexing.embedding_backward_in_order(torch.empty(0, 4), empty, 3, -1).any()


def test_bincount_with_weights() -> None:
    at, weights = positions(500, 12), make(500)
    assert same(indexing.bincount(at, weights, 20), torch.bincount(at, weights, 20))
    assert same(indexing.bincount(at, weights.double()), torch.bincount(at, weights.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(3, 1, 1, 1), (2, 2, 0, 1), ((3, 2), (2, 1), (1, 0), (1, 2))]
)
def test_fold(dtype: torch.dtype, kernel: int, stride: int, padding: int, dilation: int) -> None:
    options = {"dilation": dilation, "padding": padding, "stride": stride}
    columns = F.unfold(make(2, 3, 9, 10, dtype=dtype), kernel, **options)
    lists = [[v] if isinstance(v, int) else list(v) for v in (kernel, dilation, padding, stride)]
    wanted = F.fold(columns, (9, 10), kernel, **options)
    assert same(indexing.col2im(columns, [9, 10], *lists), wanted)
    assert same(indexing.col2im(columns[0], [9, 10], *lists), wanted[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "step"), [(5, 2), (3, 3), (2, 5), (4, 1)])
def test_unfold_backward(dtype: torch.dtype, size: int, step: int) -> None:
    for dim in range(3):
        gradient = make(*make(11, 12, 13).unfold(dim, size, step).shape, dtype=dtype)
        made = indexing.unfold_backward(gradient, [11, 12, 13], dim, size, step)
        assert same(made, aten.unfold_backward(gradient, [11, 12, 13], dim, size, step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_padding_backward(dtype: torch.dtype, dims: int, mode: str) -> None:
    padding, x = [3, 4, 2, 1, 2, 3][: 2 * dims], make(2, 3, *[6, 5, 7][-dims:], dtype=dtype)
    operator = getattr(aten, f"{mode}_pad{dims}d_backward")
    gradient = make(*getattr(aten, f"{mode}_pad{dims}d")(x, padding).shape, dtype=dtype, seed=2)
    made = indexing.pad_backward(gradient, x, padding, reflect=mode == "reflection")
    assert same(made, operator(gradient, x, padding))


# ------------------------------------------------------------------------------------------------- bags


@pytest.mark.parametrize("mode", [bags.SUM, bags.MEAN])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_embedding_bags_are_sums_in_order(mode: int, padding: int, weighted: bool) -> None:
    if weighted and mode == bags.MEAN:
        pytest.skip("torch has weights for sums only")
    table, at, offsets = make(13, 8), positions(60, 13), torch.tensor([0, 5, 5, 30])
    weights = make(60, seed=3) if weighted else None
    made, bag, sizes, _ = bags._form_of_forward(table, at, offsets, False, mode, False, weights, False, padding)
    for number, (begin, end) in enumerate(itertools.pairwise([0, 5, 5, 30, 60])):
        total, count = torch.zeros(8), 0
        for position in range(begin, end):
            assert bag[position] == number
            if at[position] != padding:
                total = total + table[at[position]] * (weights[position] if weights is not None else 1)
                count += 1
        assert sizes[number] == count
        assert same(made[number], total / max(count, 1) if mode == bags.MEAN else total)


@pytest.mark.parametrize("mode", [bags.SUM, bags.MEAN, bags.MAX])
def test_embedding_bags_and_their_derivatives_are_near_stock(mode: int) -> None:
    table, at, offsets = make(13, 8).div(2**10), positions(60, 13), torch.tensor([0, 5, 5, 30])
    stock = aten._embedding_bag(table, at, offsets, False, mode)
    made = bags._form_of_forward(table, at, offsets, False, mode)
    assert torch.allclose(stock[0], made[0], rtol=1e-5, atol=1e-4)
    gradient = make(4, 8, seed=2).div(2**10)
    rest = (13, False, mode, None, -1)
    wanted = aten._embedding_bag_dense_backward(gradient, at, made[1], stock[2], stock[3], *rest)
    derived = bags.embedding_bag_dense_backward(gradient, at, made[1], made[2], made[3], *rest)
    assert torch.allclose(wanted, derived, rtol=1e-5, atol=1e-4)


def test_the_derivative_of_weights_of_samples() -> None:
    table, at, offsets = make(13, 8).div(2**10), positions(60, 13), torch.tensor([0, 5, 5, 30])
    gradient, bag = make(4, 8, seed=2).div(2**10), bags.bag_of_each(at, offsets, False)[0]
    made = bags.embedding_bag_per_sample_weights_backward(gradient, table, at, offsets, bag, bags.SUM)
    wanted = (gradient[bag].double() * table[at].double()).sum(1)
    assert torch.allclose(made.double(), wanted, rtol=1e-6)
