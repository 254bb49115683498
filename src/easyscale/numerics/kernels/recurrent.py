"""LSTM, GRU and plain RNN layers and cells, taken apart in the same way on every device.

Stock takes them apart by device: on the CPU the input's product is one for all steps, on CUDA one for each step with a
fused cell after it, so that the gradients of weights and biases are sums of another order. Here the CPU's way is the
way of all devices: operators that have forms, in the order of the stock CPU code, so that autograd has the same graph.

`COMPOSITES` maps aten overloads to these functions. They are differentiable compositions, not kernels: they belong
under torch's CompositeImplicitAutograd key, unlike the table of `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import linear

State = tuple[Tensor, ...]  # (hidden,) or (hidden, cell)


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of one direction of one layer."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None

    def from_input(self, x: Tensor) -> Tensor:
        return linear(x, self.w_ih, self.b_ih)

    def from_hidden(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.w_hh, self.b_hh)


Cell = Callable[[Tensor, State, Weights], State]  # from the input's gates


def _lstm(gates_in: Tensor, state: State, weights: Weights) -> State:
    hidden, cell = _lstm_joined(weights.from_hidden(state[0]), gates_in, state[1])
    return (hidden if weights.w_hr is None else torch.matmul(hidden, weights.w_hr.t())), cell


def _lstm_joined(hidden: Tensor, given: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    gates = hidden.add_(given).unsafe_chunk(4, 1)
    enter, keep, new, leave = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[2].tanh_(), gates[3].sigmoid_()
    cell = (keep * cell).add_(enter * new)
    return leave * cell.tanh(), cell


def _gru(gates_in: Tensor, state: State, weights: Weights) -> State:
    (hidden,) = state
    given = gates_in.unsafe_chunk(3, 1)
    own = weights.from_hidden(hidden).unsafe_chunk(3, 1)
    reset = own[0].add_(given[0]).sigmoid_()
    enter = own[1].add_(given[1]).sigmoid_()
    new = given[2].add(own[2].mul_(reset)).tanh_()
    return ((hidden - new).mul_(enter).add_(new),)


def _tanh(gates_in: Tensor, state: State, weights: Weights) -> State:
    return (torch.tanh(weights.from_hidden(state[0]).add_(gates_in)),)


def _relu(gates_in: Tensor, state: State, weights: Weights) -> State:
    return (torch.relu(weights.from_hidden(state[0]).add_(gates_in)),)


# ------------------------------------------------------------------------------------------------ one direction


def _along(cell: Cell, x: Tensor, state: State, weights: Weights, backwards: bool) -> tuple[Tensor, State]:
    """Over x [steps, images, features]."""
    steps: Sequence[Tensor] = weights.from_input(x).unbind(0)
    outputs = []
    for step in reversed(steps) if backwards else steps:
        state = cell(step, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 0), state


def _along_packed(
    cell: Cell, data: Tensor, sizes: list[int], state: State, weights: Weights, backwards: bool
) -> tuple[Tensor, State]:
    """Over packed sequences: `sizes` is how many of them are still running at each step, descending."""
    gates = weights.from_input(data)
    outputs = []
    if backwards:
        offset, running = data.shape[0], sizes[-1]
        begun, state = state, tuple(part[:running] for part in state)
        for size in reversed(sizes):
            if size > running:  # shorter sequences begin, at their end
                state = tuple(torch.cat([a, b[running:size]], 0) for a, b in zip(state, begun, strict=True))
            offset, running = offset - size, size
            state = cell(gates.narrow(0, offset, size), state, weights)
            outputs.append(state[0])
        return torch.cat(outputs[::-1], 0), state
    offset, running, ended = 0, sizes[0], []
    state = tuple(part[:running] for part in state)
    for size in sizes:
        if size < running:
            ended.append(tuple(part[size:running] for part in state))
            state = tuple(part[:size] for part in state)
        running = size
        state = cell(gates.narrow(0, offset, size), state, weights)
        offset += size
        outputs.append(state[0])
    ended.append(state)
    return torch.cat(outputs, 0), tuple(torch.cat(parts, 0) for parts in zip(*reversed(ended), strict=True))


# ------------------------------------------------------------------------------------------------ layers


def _layers(
    cell: Cell, x: Tensor, sizes: list[int] | None, states: State, params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """All layers. `states` hold one entry per layer and direction in dimension 0, and so does what is returned."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    begun = list(zip(*(part.unbind(0) for part in states), strict=True))
    final: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = _weights(params[place * each : (place + 1) * each], has_biases)
            if sizes is None:
                output, state = _along(cell, x, begun[place], weights, bool(direction))
            else:
                output, state = _along_packed(cell, x, sizes, begun[place], weights, bool(direction))
            outputs.append(output)
            final.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout != 0 and train and layer < num_layers - 1:
            x = drop(x, dropout, True)
    return x, tuple(torch.stack(parts, 0) for parts in zip(*final, strict=True))


def _weights(params: Sequence[Tensor], has_biases: bool) -> Weights:
    if has_biases:
        return Weights(*params)
    return Weights(params[0], params[1], w_hr=params[2] if len(params) > 2 else None)


def _over_steps(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    """The overloads `.input`: one tensor of all steps."""

    def layer(
        input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        x = input.transpose(0, 1) if batch_first else input
        x, states = _layers(cell, x, None, states, params, has_biases, num_layers, dropout, train, bidirectional)
        return (x.transpose(0, 1) if batch_first else x), *states

    return layer


def _over_packed(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    """The overloads `.data`: packed sequences."""

    def layer(
        data: Tensor, batch_sizes: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
        num_layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        sizes = batch_sizes.tolist()
        x, states = _layers(cell, data, sizes, states, params, has_biases, num_layers, dropout, train, bidirectional)
        return x, *states

    return layer


def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    weights = Weights(w_ih, w_hh, b_ih, b_hh)
    hidden = weights.from_hidden(hx[0])  # before the input's product, as stock has it: autograd's order hangs on it
    return _lstm_joined(hidden, weights.from_input(input), hx[1])


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    weights = Weights(w_ih, w_hh, b_ih, b_hh)
    return _gru(weights.from_input(input), (hx,), weights)[0]


COMPOSITES: dict[str, Callable[..., Any]] = {
    "lstm_cell": lstm_cell,
    "gru_cell": gru_cell,
    **{f"{name}.input": _over_steps(cell) for name, cell in
       {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}.items()},
    **{f"{name}.data": _over_packed(cell) for name, cell in
       {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}.items()},
}  # fmt: skip
