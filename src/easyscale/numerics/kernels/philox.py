"""Words of random bits by a counter: Philox 4x32-10 (Salmon et al., 2011), the same numbers on every device.

Word i of the stream of a key is word i % 4 of the block with counter i / 4. The key of a stream is drawn from a CPU
generator (torch's Mersenne twister, whole numbers, the same everywhere); so the state of the CPU generator is the
whole state of all randomness at level D2, on CUDA too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import gpu, native, primitives
from easyscale.numerics.kernels.gpu import draws
from easyscale.numerics.kernels.stock import on_cpu
from easyscale.numerics.kernels.watching import not_a_launch

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF

_random = on_cpu("random_")


def draw_key(generator: torch.Generator | None) -> int:
    """The key of the next stream: 63 bits of the generator."""
    if generator is not None and generator.device.type != "cpu":
        raise UnsupportedError(
            f"A random operator was given a generator on {generator.device}.",
            "at level D2 the numbers come from CPU generators on every device type, so that a job can move.",
            "pass a CPU generator (torch.Generator()) or none.",
        )
    not_a_launch()
    place = torch.empty_strided((), (), dtype=torch.int64, device="cpu")  # twice as fast as `empty`
    return int(_random(place, generator=generator).item())


def words(count: int, key: int, device: torch.device, start: int = 0) -> Tensor:
    """int64 [count] of words in 0 .. 2^32 - 1, from word `start` (a multiple of 4) of the key's stream on."""
    chosen = primitives.implementation(device)
    if chosen is native and count:
        from easyscale.numerics.kernels.native.rows import function

        out = torch.empty(count, dtype=torch.int64)
        function("d2_philox_words", "pllli")(out.data_ptr(), count, start, key, torch.get_num_threads())
        return out
    if chosen is gpu:
        return draws.philox_words(count, key, device, start)
    return portable_words(count, key, device, start)


def portable_words(count: int, key: int, device: torch.device, start: int = 0) -> Tensor:
    """`words`, in torch's whole-number operators."""
    counter = torch.arange(start // 4, start // 4 + (count + 3) // 4, device=device)
    c0, c1 = counter & _LOW, counter >> 32
    c2, c3 = torch.zeros_like(counter), torch.zeros_like(counter)
    k0, k1 = key & _LOW, key >> 32
    for _ in range(10):
        high0, low0 = _times(c0, _M0)
        high1, low1 = _times(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack([c0, c1, c2, c3], dim=1).reshape(-1)[:count]


def _times(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of 32-bit numbers, with no step above 2^49."""
    low, high = x * (factor & 0xFFFF), x * (factor >> 16)
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
