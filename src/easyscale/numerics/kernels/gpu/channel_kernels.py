# mypy: ignore-errors
# ruff: noqa: RUF005, RET505  Triton knows neither stars in tuples nor code after a return that is not taken
"""Triton kernels of batch norm, and of the gradients of the weights of norms: sums of many values for each channel.

A channel's values are numbered by (sample, pixel). Memory is [sample, channel, pixel], or, LAST, [sample and pixel,
channel]. A tile is ROWS times COLUMNS values: LAST, ROWS values of COLUMNS channels; else of one channel, COLUMNS of
them beside each other in memory too if PIECE (2: and pixels are a multiple of COLUMNS). `sums` leaves `left` partial
sums of each channel, [left, channels] if LAST, else [channels, left]; whoever uses them adds them up (`_whole`), which
takes no launch of its own. Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.rows_kernels import across, divided, down, looped, number, rounded, tree

VALUE = tl.constexpr(0)  # x
SQUARE = tl.constexpr(1)  # (x - mean) * (x - mean), with the mean from the partial sums of x
PRODUCT = tl.constexpr(2)  # g * (x - mean); and g
NORMAL = tl.constexpr(3)  # g * ((x - mean) * rstd), mean and rstd of the sample's group; and g
PLAIN = tl.constexpr(4)  # g * (x * rstd), without a mean; and g


@triton.jit
def _placed(first, column, sizes, LAST: tl.constexpr, PIECE: tl.constexpr, WIDE: tl.constexpr):
    """Where the values of a tile lie, which of them there are, and their samples. `first`: the number of the first
    value of each row of the tile; `column`: channels if LAST, else steps from the first value."""
    channel, channels, length, pixels, magic, shift = sizes
    if LAST:
        return first * channels + column, (first < length) & (column < channels), first
    elif PIECE:
        sample = divided(first, pixels, magic, shift, WIDE)
        base = (sample * channels + channel) * pixels + (first - sample * pixels)
        if PIECE == 2:  # pixels are a multiple of COLUMNS: whole rows are there or not, and they are aligned
            base = tl.multiple_of(base, [1, column.shape[1]])
            return base + column, (first < length) & (column >= 0), sample
        else:
            return base + column, first + column < length, sample
    else:
        index = first + column
        sample = divided(index, pixels, magic, shift, WIDE)
        return (sample * channels + channel) * pixels + (index - sample * pixels), index < length, sample


@triton.jit
def _whole(part, column, channel, channels, LEFT: tl.constexpr, LAST: tl.constexpr):
    """The sums of channels `column` ([1, COLUMNS]) if LAST, else of one channel ([1, 1]), from `LEFT` parts of each."""
    lane = tl.arange(0, LEFT)
    if LAST:
        here = (lane[:, None] >= 0) & (column < channels)
        parts = tl.load(part + lane[:, None] * channels + column, mask=here, other=0)
        return down(parts, LEFT, column.shape[1])
    else:
        return across(tl.load(part + channel.to(tl.int64) * LEFT + lane)[None, :], 1, LEFT)


@triton.jit
def _of_channel(values, column, channel, channels, LAST: tl.constexpr):
    """fp64 values of channels `column` if LAST, else of one channel; of a type that `values` has."""
    if LAST:
        return tl.load(values + column, mask=column < channels, other=0).to(tl.float64)
    else:
        return tl.load(values + channel + tl.zeros((1, 1), tl.int32)).to(tl.float64)


@triton.jit
def _keep(to, value, column, channel, channels, here, LAST: tl.constexpr):
    """Writes what belongs to channels `column`, or to one channel."""
    if LAST:
        tl.store(to + column, rounded(value, to), mask=here & (column < channels))
    else:
        tl.store(to + channel + tl.zeros((1, 1), tl.int32), rounded(value, to), mask=here)


@triton.jit
def _term(context, SHAPE: tl.constexpr, i):
    """The tree over the chunks of round i: one sum, or two where there is a gradient."""
    g, x, mean, rstd, column, residue, left, sizes, groups, per_group = context
    KIND: tl.constexpr = SHAPE[0]
    products, plain = (), ()
    for k in tl.static_range(SHAPE[3]):
        row = (i + k * 2 ** SHAPE[4]) * SHAPE[1] + tl.arange(0, SHAPE[1])
        if SHAPE[7]:
            row = row.to(tl.int64)
        at, here, sample = _placed((row * left + residue)[:, None], column, sizes, SHAPE[5], SHAPE[6], SHAPE[7])
        v = tl.load(x + at, mask=here, other=0).to(tl.float64)
        if KIND == SQUARE or KIND == PRODUCT:  # noqa: SIM109  Triton knows no `in`
            v = v - mean
        if KIND >= NORMAL:
            group = sample * groups + (0 if SHAPE[5] else sizes[0] // per_group)
            known = sample * sizes[3] < sizes[2]
            if KIND == NORMAL:
                v = v - tl.load(mean + group, mask=known, other=0).to(tl.float64)
            v = v * tl.load(rstd + group, mask=known, other=0).to(tl.float64)
        if KIND == VALUE:
            products = products + (v,)
        elif KIND == SQUARE:
            products = products + (tl.where(here, v * v, tl.zeros_like(v)),)
        else:
            slope = tl.load(g + at, mask=here, other=0).to(tl.float64)
            products = products + (tl.where(here, slope * v, tl.zeros_like(v)),)
            plain = plain + (slope,)
    if KIND <= SQUARE:
        return (tree(products, SHAPE[2]),)
    else:
        return tree(products, SHAPE[2]), tree(plain, SHAPE[2])


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["size"])
def sums(
    g, x, mean, rstd, part, channels, length, left, pixels, magic, shift, groups, per_group, size,
    KIND: tl.constexpr, LAST: tl.constexpr, PIECE: tl.constexpr, WIDE: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr, VALID: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """`left` partial sums of each channel of what KIND says, and behind them those of g if there is a gradient."""
    blocks = tl.cdiv(channels, COLUMNS) if LAST else channels
    block = tl.program_id(0) % blocks
    other = tl.program_id(0) // blocks
    column = tl.arange(0, COLUMNS)[None, :]
    residue = other
    if LAST:
        column = column + block * COLUMNS
        to = other * channels + column
    else:
        residue = other * COLUMNS
        to = block * left + residue + column
    sizes = (block, channels, length, pixels, magic, shift)
    if KIND == SQUARE:
        center = _whole(mean, column, block, channels, LEFT, LAST) / number(size)
    elif KIND == PRODUCT:
        center = _of_channel(mean, column, block, channels, LAST)
    else:
        center = mean
    context = (g, x, center, rstd, column, residue, left, sizes, groups, per_group)
    SHAPE: tl.constexpr = (KIND, ROWS, CHUNKS, VALID, LEVELS, LAST, PIECE, WIDE)
    COUNT: tl.constexpr = 1 if KIND <= SQUARE else 2
    found = looped(_term, context, SHAPE, tl.zeros((ROWS, COLUMNS), dtype=tl.float64), COUNT, LEVELS)
    for k in tl.static_range(COUNT):
        here = column < channels if LAST else column >= 0
        tl.store(part + k * (channels * left) + to, down(found[k], ROWS, COLUMNS), mask=here)


@triton.jit
def finish(
    part, first, second, channels, PAIR: tl.constexpr, LAST: tl.constexpr, LEFT: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The sums themselves, of products to `first` and (PAIR) of gradients to `second`."""
    block = tl.program_id(0)
    column = tl.arange(0, COLUMNS)[None, :] + block * COLUMNS
    _keep(first, _whole(part, column, block, channels, LEFT, LAST), column, block, channels, True, LAST)
    if PAIR:
        total = _whole(part + channels * LEFT, column, block, channels, LEFT, LAST)
        _keep(second, total, column, block, channels, True, LAST)


# ------------------------------------------------------------------------------------------------ batch norm


@triton.jit
def _tiles(
    start, column, sizes, ROWS: tl.constexpr, LAST: tl.constexpr, PIECE: tl.constexpr, WIDE: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Where the values of UNROLL tiles lie, and which of them there are: values of one channel, or rows of them."""
    found = ()
    for t in tl.static_range(UNROLL):
        row = (start + t) * ROWS + tl.arange(0, ROWS)
        if WIDE:
            row = row.to(tl.int64)
        if not LAST:
            row = row * column.shape[1]
        at, here, _ = _placed(row[:, None], column, sizes, LAST, PIECE, WIDE)
        found = found + (at, here)
    return found


@triton.jit
def _loaded(x, places, UNROLL: tl.constexpr):
    """All before anything is stored, which the compiler would not move a load over."""
    found = ()
    for t in tl.static_range(UNROLL):
        found = found + (tl.load(x + places[2 * t], mask=places[2 * t + 1], other=0),)
    return found


@triton.jit
def _updated(running, batch, kept, taken, column, channel, channels, here, LAST: tl.constexpr):
    before = _of_channel(running, column, channel, channels, LAST)
    _keep(running, before * number(kept) + batch * number(taken), column, channel, channels, here, LAST)


@triton.jit(
    do_not_specialize=["size", "eps", "kept", "taken", "unbiased"],
    do_not_specialize_on_alignment=["size", "eps", "kept", "taken", "unbiased"],
)
def normalize(
    x, part, squares, w, b, running_mean, running_var, saved_mean, saved_rstd, out, channels, length, pixels, magic,
    shift, tiles, per, size, eps, kept, taken, unbiased, TRAINING: tl.constexpr, RUNNING: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, LAST: tl.constexpr, PIECE: tl.constexpr, WIDE: tl.constexpr,
    LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """((x - mean) * rstd) * w + b, with the batch's statistics or the running ones, which are brought up to date."""
    blocks = tl.cdiv(channels, COLUMNS) if LAST else channels
    block = tl.program_id(0) % blocks
    span = tl.program_id(0) // blocks
    column = tl.arange(0, COLUMNS)[None, :]
    if LAST:
        column = column + block * COLUMNS
    if TRAINING:
        mean = _whole(part, column, block, channels, LEFT, LAST) / number(size)
        variance = _whole(squares, column, block, channels, LEFT, LAST) / number(size)
    else:
        mean = _of_channel(running_mean, column, block, channels, LAST)
        variance = _of_channel(running_var, column, block, channels, LAST)
    one = tl.full((), 1, tl.int32).to(tl.float64)
    rstd = one / tl.sqrt(variance + number(eps))
    if TRAINING:
        here = span == 0
        _keep(saved_mean, mean, column, block, channels, here, LAST)
        _keep(saved_rstd, rstd, column, block, channels, here, LAST)
        if RUNNING:
            _updated(running_mean, mean, kept, taken, column, block, channels, here, LAST)
            _updated(running_var, variance * number(unbiased), kept, taken, column, block, channels, here, LAST)
    sizes = (block, channels, length, pixels, magic, shift)
    if WEIGHT:
        weight = _of_channel(w, column, block, channels, LAST)
    if BIAS:
        bias = _of_channel(b, column, block, channels, LAST)
    for start in range(span * per, min(span * per + per, tiles), UNROLL):
        places = _tiles(start, column, sizes, ROWS, LAST, PIECE, WIDE, UNROLL)
        values = _loaded(x, places, UNROLL)
        for t in tl.static_range(UNROLL):
            v = (values[t].to(tl.float64) - mean) * rstd
            if WEIGHT:
                v = v * weight
            if BIAS:
                v = v + bias
            tl.store(out + places[2 * t], rounded(v, out), mask=places[2 * t + 1])


@triton.jit(do_not_specialize=["size", "eps"], do_not_specialize_on_alignment=["size", "eps"])
def gradient(
    g, x, part, w, mean, rstd, out, dw, db, channels, length, pixels, magic, shift, tiles, per, size, eps,
    TRAINING: tl.constexpr, WANTED: tl.constexpr, WEIGHT: tl.constexpr, LAST: tl.constexpr, PIECE: tl.constexpr,
    WIDE: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """dx = ((g - s1 / n) - (x - mean) * (((s2 / n) * rstd) * rstd)) * (rstd * w), dw = s2 * rstd and db = s1. Not
    TRAINING: `rstd` is the running variance, and dx = g * (rstd * w)."""
    blocks = tl.cdiv(channels, COLUMNS) if LAST else channels
    block = tl.program_id(0) % blocks
    span = tl.program_id(0) // blocks
    column = tl.arange(0, COLUMNS)[None, :]
    if LAST:
        column = column + block * COLUMNS
    second = _whole(part, column, block, channels, LEFT, LAST)
    first = _whole(part + channels * LEFT, column, block, channels, LEFT, LAST)
    center = _of_channel(mean, column, block, channels, LAST)
    scale = _of_channel(rstd, column, block, channels, LAST)
    if not TRAINING:
        one = tl.full((), 1, tl.int32).to(tl.float64)
        scale = one / tl.sqrt(scale + number(eps))
    _keep(dw, second * scale, column, block, channels, span == 0, LAST)
    _keep(db, first, column, block, channels, span == 0, LAST)
    if WANTED:
        shift_by = first / number(size)
        slope = ((second / number(size)) * scale) * scale
        if WEIGHT:
            scale = scale * _of_channel(w, column, block, channels, LAST)
        sizes = (block, channels, length, pixels, magic, shift)
        for start in range(span * per, min(span * per + per, tiles), UNROLL):
            places = _tiles(start, column, sizes, ROWS, LAST, PIECE, WIDE, UNROLL)
            slopes = _loaded(g, places, UNROLL)
            values = _loaded(x, places, UNROLL) if TRAINING else slopes
            for t in tl.static_range(UNROLL):
                v = slopes[t].to(tl.float64)
                if TRAINING:
                    v = (v - shift_by) - (values[t].to(tl.float64) - center) * slope
                tl.store(out + places[2 * t], rounded(v * scale, out), mask=places[2 * t + 1])
