"""Random operators: element i, in row-major order whatever the strides, is a function of the words of its stream alone.

Every call draws one key from the CPU generator (`philox.draw_key`) and uses the words of that key's stream:
    bernoulli, dropout      word i below 2^32 * p
    uniform                 the top 24 bits of word i (bf16 8, fp16 11; fp64: 53 bits of words 2i and 2i + 1)
    normal, log_normal      Box-Muller in fp64 from words 2i and 2i + 1: sqrt(-2 log u) cos(2 pi v)
    exponential, geometric, cauchy, multinomial
                            from u = (word + 1/2) / 2^32, in fp64
Computed in fp64 by the formulas and rounded once. Whole numbers (random_, randint, randperm) are the stock CPU kernels'
numbers, copied to where they are wanted: so the order of samples is that of level D1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, native, primitives
from easyscale.numerics.kernels.gpu import draws
from easyscale.numerics.kernels.philox import draw_key, words
from easyscale.numerics.kernels.refusal import refuse
from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.stock import stock

Generator = torch.Generator
_CHUNK = 1 << 20  # elements at a time: bounds the memory of fp64 steps
_BITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11, torch.float64: 53}
_WORDS = 2.0**32


def _written(self: Tensor, values: Tensor) -> Tensor:
    return self.copy_(values.reshape(self.shape))


def _in_chunks(self: Tensor, make: Callable[[int, int], Tensor]) -> Tensor:
    """Fill row by row with make(first element, count), which may give fp64."""
    count = self.numel()
    if count <= _CHUNK:
        return _written(self, make(0, count)) if count else self
    flat = self.view(-1) if self.is_contiguous() else torch.empty(count, dtype=self.dtype, device=self.device)
    for first in range(0, count, _CHUNK):
        flat[first : first + _CHUNK] = make(first, min(_CHUNK, count - first))
    return self if flat.data_ptr() == self.data_ptr() else _written(self, flat)


def _pairs(first: int, count: int, key: int, device: torch.device) -> Iterator[Tensor]:
    """Words 2i and words 2i + 1 of the elements."""
    made = words(2 * count, key, device, start=2 * first).view(-1, 2)
    return iter(made.unbind(1))


def _inside(first: int, count: int, key: int, device: torch.device) -> Tensor:
    """fp64 in the open interval 0 .. 1, one word each."""
    return (words(count, key, device, start=first).double() + 0.5) / _WORDS


def _in_c(self: Tensor) -> bool:
    return self.dtype is torch.float32 and self.is_contiguous() and primitives.implementation(self.device) is native


def _by_kernel(self: Tensor) -> bool:
    return self.dtype in draws.DTYPES and self.is_contiguous() and primitives.implementation(self.device) is gpu


def _call(name: str, arguments: str, self: Tensor, *numbers: float) -> Tensor:
    from easyscale.numerics.kernels.native.rows import function

    function(name, f"pl{arguments}i")(self.data_ptr(), self.numel(), *numbers, torch.get_num_threads())
    return self


# ------------------------------------------------------------------------------------------- uniform, bernoulli


@form("uniform_")
def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    if not low <= high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    key = draw_key(generator)
    if _in_c(self):
        return _call("d2_philox_uniform", "ldd", self, key, low, high)
    if self.dtype not in _BITS:
        refuse(f"uniform_ on {self.dtype}", "random numbers are drawn in fp32, fp64, bf16 and fp16.")
    bits = _BITS[self.dtype]
    if _by_kernel(self):
        return draws.uniform(self, key, float(low), float(high), bits)
    top = torch.full((), high, dtype=self.dtype, device=self.device)

    def make(first: int, count: int) -> Tensor:
        if bits == 53:
            upper, lower = _pairs(first, count, key, self.device)
            whole = upper * 2**21 + (lower >> 11)
        else:
            whole = words(count, key, self.device, start=first) >> (32 - bits)
        value = (whole.double() * 2.0**-bits * (high - low) + low).float() if bits < 53 else (
            whole.double() * 2.0**-53 * (high - low) + low
        )  # fmt: skip
        value = value.to(self.dtype)
        return value if low == high else torch.where(value < top, value, low)

    return _in_chunks(self, make)


def limit_of(p: float) -> int:
    """Words below it are drawn with probability p."""
    if not 0.0 <= p <= 1.0:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return math.ceil(p * _WORDS)


@form("bernoulli_.float")
def bernoulli_(self: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
    limit, key = limit_of(p), draw_key(generator)
    return kept_of(self, key, limit)


def kept_of(self: Tensor, key: int, limit: int, start: int = 0) -> Tensor:
    """Filled with 1 where the word is below the limit, with 0 elsewhere; from word `start` (a multiple of 4) on."""
    if not start and _in_c(self):
        return _call("d2_philox_bernoulli", "ll", self, key, limit)
    if not start and _by_kernel(self):
        return draws.bernoulli(self, key, limit)
    return _in_chunks(self, lambda first, count: words(count, key, self.device, start=start + first) < limit)


@form("bernoulli_.Tensor")
def bernoulli_by(self: Tensor, p: Tensor, *, generator: Generator | None = None) -> Tensor:
    key = draw_key(generator)
    limits = (p.to(self.device, torch.float64) * _WORDS).expand(self.shape).reshape(-1)  # exact: a power of two
    return _in_chunks(
        self, lambda first, count: words(count, key, self.device, start=first).double() < limits[first : first + count]
    )


@form("bernoulli.out")
def bernoulli_out(self: Tensor, *, generator: Generator | None = None, out: Tensor) -> Tensor:
    if out.shape != self.shape:
        out.resize_(self.shape)
    return bernoulli_by(out, self, generator=generator)


@functools.lru_cache(maxsize=256)
def noise_of(rest: float, dtype: torch.dtype) -> float:
    """One divided by a number, in the dtype."""
    return float(torch.ones(1, dtype=dtype).div_(rest))


@form("native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or not input.numel():
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p < 1 and _by_kernel(input):
        return draws.dropout(input, draw_key(None), limit_of(1 - p), noise_of(1 - p, input.dtype))
    noise = bernoulli_(torch.empty_like(input), 1 - p)
    mask = noise.bool()
    return (input * noise.div_(1 - p) if p < 1 else torch.zeros_like(input)), mask


@form("native_dropout_backward")
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    # As the derivative of dropout on CPUs: by the mask divided by 1 - p in the dtype. scale is 1 / (1 - p); p = 1: 0.
    if primitives.implementation(grad_output.device) is gpu and grad_output.dtype in draws.DTYPES:
        if not (grad_output.is_contiguous() and mask.is_contiguous()):
            grad_output, mask = grad_output.contiguous(), mask.contiguous()
        return draws.dropout_backward(grad_output, mask, noise_of(1 / scale, grad_output.dtype) if scale else 0.0)
    noise = mask.to(grad_output.dtype)
    return grad_output * (noise.div_(1 / scale) if scale else torch.zeros_like(noise))


@form("rrelu_with_noise")
def rrelu_with_noise(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """A slope drawn for each element that is not above zero; the noise is the slopes."""
    if not training:
        return torch.nn.functional.leaky_relu(self, (float(lower) + float(upper)) / 2)
    slopes = uniform_(torch.empty_like(self), float(lower), float(upper), generator=generator)
    noise.copy_(torch.where(self <= 0, slopes, 1.0))
    return self * noise


@form("rrelu_with_noise_")
def rrelu_with_noise_(self: Tensor, noise: Tensor, *rest: Any, **named: Any) -> Tensor:
    return self.copy_(rrelu_with_noise(self, noise, *rest, **named))


# ------------------------------------------------------------------------------------------- normal and the like


def _normal(first: int, count: int, key: int, device: torch.device) -> Tensor:
    """fp64 standard normal numbers."""
    one, two = _pairs(first, count, key, device)
    squared = primitives.evaluate("log", [(one.double() + 0.5) / _WORDS], dtype=torch.float64) * -2.0
    radius = primitives.evaluate("sqrt", [squared], dtype=torch.float64)
    return radius * primitives.evaluate("cos", [two.double() * (2 * math.pi / _WORDS)], dtype=torch.float64)


def _checked(std: float) -> None:
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


@form("normal_")
def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    _checked(std)
    key = draw_key(generator)
    if _by_kernel(self):
        return draws.normal(self, key, float(mean), float(std))
    return _in_chunks(self, lambda first, count: _normal(first, count, key, self.device) * std + mean)


def _normal_like(shape: torch.Size, mean: Tensor | float, std: Tensor | float, generator: Generator | None) -> Tensor:
    shown = mean if isinstance(mean, Tensor) else std
    assert isinstance(shown, Tensor)
    standard = normal_(torch.empty(shape, dtype=torch.float64, device=shown.device), generator=generator)
    scale = std.double() if isinstance(std, Tensor) else std
    centre = mean.double() if isinstance(mean, Tensor) else mean
    return (standard * scale + centre).to(shown.dtype)


@form("normal.Tensor_float")
def normal_around(mean: Tensor, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    _checked(std)
    return _normal_like(mean.shape, mean, std, generator)


@form("normal.float_Tensor")
def normal_wide(mean: float, std: Tensor, *, generator: Generator | None = None) -> Tensor:
    return _normal_like(std.shape, mean, std, generator)


@form("normal.Tensor_Tensor")
def normal_both(mean: Tensor, std: Tensor, *, generator: Generator | None = None) -> Tensor:
    return _normal_like(torch.broadcast_shapes(mean.shape, std.shape), mean, std, generator)


@form("log_normal_")
def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    key = draw_key(generator)

    def make(first: int, count: int) -> Tensor:
        return primitives.evaluate("exp", [_normal(first, count, key, self.device) * std + mean], dtype=torch.float64)

    return _in_chunks(self, make)


@form("exponential_")
def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    key = draw_key(generator)
    if _by_kernel(self):
        return draws.exponential(self, key, float(lambd))

    def make(first: int, count: int) -> Tensor:
        inside = _inside(first, count, key, self.device)
        return primitives.evaluate("log", [inside], dtype=torch.float64) * -1.0 / _full(lambd, inside)

    return _in_chunks(self, make)


@form("geometric_")
def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    key = draw_key(generator)
    rest = primitives.evaluate("log1p", [torch.tensor(-p, dtype=torch.float64)], dtype=torch.float64)

    def make(first: int, count: int) -> Tensor:
        inside = _inside(first, count, key, self.device)
        return (primitives.evaluate("log", [inside], dtype=torch.float64) / rest.to(self.device)).ceil()

    return _in_chunks(self, make)


@form("cauchy_")
def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    key = draw_key(generator)

    def make(first: int, count: int) -> Tensor:
        angle = (_inside(first, count, key, self.device) - 0.5) * math.pi
        return primitives.evaluate("tan", [angle], dtype=torch.float64) * sigma + median

    return _in_chunks(self, make)


def _full(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


@form("multinomial")
def multinomial(
    self: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """One sample, or several that differ: the largest of p / exponential. Else by the cumulative sums."""
    weights = self.double()
    if bool((~torch.isfinite(weights) | (weights < 0)).any()) or bool((weights.amax(-1) <= 0).any()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0, or no element > 0")
    if not replacement or num_samples == 1:
        if num_samples > self.shape[-1]:
            raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
        race = weights / exponential_(torch.empty_like(weights), generator=generator)
        return race.sort(dim=-1, descending=True, stable=True)[1][..., :num_samples].contiguous()
    sums = torch.cumsum(weights, dim=-1)
    shape = (*self.shape[:-1], num_samples)
    chosen = uniform_(torch.empty(shape, dtype=torch.float64, device=self.device), generator=generator)
    found = torch.searchsorted(sums, chosen * sums[..., -1:], right=True)
    return found.clamp_(max=self.shape[-1] - 1)


# ------------------------------------------------------------------------------------------- whole numbers on CUDA


def _from_cpu(name: str) -> None:
    kernel = stock(name)

    @form(name, devices=("cuda",))
    def draw(self: Tensor, *bounds: int, generator: Generator | None = None) -> Tensor:
        if generator is not None and generator.device.type != "cpu":
            draw_key(generator)  # refuses it
        return self.copy_(kernel(torch.empty(self.shape, dtype=self.dtype), *bounds, generator=generator))


for _name in ("random_", "random_.from", "random_.to"):
    _from_cpu(_name)

_randperm = stock("randperm.generator_out")


@form("randperm.generator_out", devices=("cuda",))
def randperm(n: int, *, generator: Generator | None = None, out: Tensor) -> Tensor:
    if generator is not None and generator.device.type != "cpu":
        draw_key(generator)  # refuses it
    order = _randperm(n, generator=generator, out=torch.empty(n, dtype=out.dtype))
    if out.shape != order.shape:
        out.resize_(order.shape)
    return out.copy_(order)
