"""A very small language for elementwise functions: straight-line programs over fp64, fp32, int64 and truth values.

A function is written once, in Python, over symbolic values; `traced` runs it and keeps the operations it asked for.
The program that comes of it is the definition. Back ends turn it into C (`emit_c`), Triton (`emit_triton`) or torch
operators (`portable.elementwise`); since every operation is exact or correctly rounded by IEEE-754 and none may be
joined with another, all of them compute the same bits. Standard library only: the C is written at build time, when no
torch is there.

Operations, by kind of value (f: fp64, i: int64 with wrap-around, b: truth value; s: fp32, t: truth value of fp32):
    f  add sub mul div sqrt neg abs        i  iadd isub iand ior ixor ishl ishr (logical: zeros come in from the left)
    b  lt le eq (of f), and or not         f <-> i  bits, from_bits (the same 64 bits)        where (of f or i)
    s  sadd ssub smul sneg sabs, sfma (a * b + c with one rounding), ssign (the first with the sign of the second),
       spower (2^k of 1.5 * 2^23 + k, for -127 < k < 128), sguess (bits 0x7ef311c7 less those of x), slt (gives t),
       swhere
A formula is all of the first three kinds or all of the last two: fp32 formulas take and give fp32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["f", "i", "b", "s", "t"]
T = TypeVar("T")
GUESS = 0x7EF311C7  # twice the bits of 1.0, less what spreads the error to both sides


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `args` are numbers of earlier nodes; `value` is a constant, or the number of an input."""

    op: str
    kind: Kind
    args: tuple[int, ...] = ()
    value: float | int = 0


@dataclass(frozen=True, slots=True)
class Formula:
    """A function of `tensors` tensor elements and `scalars` numbers; the last node is the result. `single`: of fp32."""

    name: str
    tensors: int
    scalars: int
    nodes: tuple[Node, ...]
    single: bool = False

    def evaluate(
        self, operations: Mapping[str, Callable[..., T]], constant: Callable[[float | int, Kind], T],
        tensors: Sequence[T], scalars: Sequence[T],
    ) -> T:  # fmt: skip
        """Run the program by these operations. What is not needed any more is let go."""
        last: dict[int, int] = {}
        for number, node in enumerate(self.nodes):
            last.update(dict.fromkeys(node.args, number))
        held: dict[int, T] = {}
        for number, node in enumerate(self.nodes):
            if node.op == "tensor":
                held[number] = tensors[int(node.value)]
            elif node.op == "scalar":
                held[number] = scalars[int(node.value)]
            elif node.op == "constant":
                held[number] = constant(node.value, node.kind)
            else:
                held[number] = operations[node.op](*[held[arg] for arg in node.args])
            for arg in set(node.args):
                if last[arg] == number:
                    del held[arg]
        return held[len(self.nodes) - 1]


class _Program:
    """Nodes as they come, each only once."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[Any, int] = {}

    def put(self, op: str, kind: Kind, args: tuple[int, ...] = (), value: float | int = 0) -> Value:
        key = (op, kind, args, struct.pack("<d", value) if kind in "fs" else value)  # -0.0 is not 0.0
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(Node(op, kind, args, value))
        return Value(self, self._known[key], kind)


class Value:
    """A value of the program that is being traced. A Python number beside it is a constant of the same kind."""

    __slots__ = ("kind", "number", "program")

    def __init__(self, program: _Program, number: int, kind: Kind) -> None:
        self.program, self.number, self.kind = program, number, kind

    def put(self, op: str, kind: Kind, *args: Value) -> Value:
        return self.program.put(op, kind, tuple(arg.number for arg in args))

    def like(self, other: Value | float | int) -> Value:
        if isinstance(other, Value):
            assert other.kind == self.kind, f"{self.kind} beside {other.kind}"
            return other
        value = wrapped(int(other)) if self.kind == "i" else float(other)
        assert self.kind != "s" or is_single(value), f"{value} is no fp32"
        return self.program.put("constant", self.kind, (), value)

    def _two(self, floats: str, whole: str, left: Value | float | int, right: Value | float | int) -> Value:
        assert self.kind not in "bt"
        op = whole if self.kind == "i" else self._named(floats)
        return self.put(op, self.kind, self.like(left), self.like(right))

    def _named(self, op: str) -> str:
        """The operation's name for this kind."""
        return f"s{op}" if self.kind == "s" else op

    def __add__(self, other: Value | float | int) -> Value:
        return self._two("add", "iadd", self, other)

    def __radd__(self, other: float | int) -> Value:
        return self._two("add", "iadd", other, self)

    def __sub__(self, other: Value | float | int) -> Value:
        return self._two("sub", "isub", self, other)

    def __rsub__(self, other: float | int) -> Value:
        return self._two("sub", "isub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self._floats("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return self._floats("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        assert self.kind == "f", "of fp32 it takes a GPU too long"
        return self._floats("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.like(other) / self

    def __neg__(self) -> Value:
        return self._floats("neg", self)

    def __abs__(self) -> Value:
        return self._floats("abs", self)

    def sqrt(self) -> Value:
        return self._floats("sqrt", self)

    def _floats(self, op: str, *args: Value | float, truth: bool = False) -> Value:
        assert self.kind in "fs"
        kind: Kind = self.kind if not truth else "b" if self.kind == "f" else "t"
        return self.put(self._named(op), kind, *[self.like(arg) for arg in args])

    def __lt__(self, other: Value | float) -> Value:
        return self._floats("lt", self, other, truth=True)

    def __le__(self, other: Value | float) -> Value:
        return self._floats("le", self, other, truth=True)

    def __gt__(self, other: Value | float) -> Value:
        return self.like(other) < self

    def __ge__(self, other: Value | float) -> Value:
        return self.like(other) <= self

    def equals(self, other: Value | float) -> Value:
        return self._floats("eq", self, other, truth=True)

    def is_nan(self) -> Value:
        return ~self.equals(self)

    def bits(self) -> Value:
        assert self.kind == "f"
        return self.put("bits", "i", self)

    def from_bits(self) -> Value:
        assert self.kind == "i"
        return self.put("from_bits", "f", self)

    def __and__(self, other: Value | int) -> Value:
        assert self.kind != "f"
        return self.put("and" if self.kind == "b" else "iand", self.kind, self, self.like(other))

    def __or__(self, other: Value | int) -> Value:
        assert self.kind != "f"
        return self.put("or" if self.kind == "b" else "ior", self.kind, self, self.like(other))

    def __xor__(self, other: Value | int) -> Value:
        assert self.kind == "i"
        return self.put("ixor", "i", self, self.like(other))

    def __invert__(self) -> Value:
        assert self.kind == "b"
        return self.put("not", "b", self)

    def __lshift__(self, places: int) -> Value:
        assert self.kind == "i"
        return self.put("ishl", "i", self, self.like(places))

    def __rshift__(self, places: int) -> Value:
        assert self.kind == "i"
        assert places > 0
        return self.put("ishr", "i", self, self.like(places))


def where(condition: Value, yes: Value | float, no: Value | float) -> Value:
    """Both sides are always computed; a side that is not taken may be anything, NaN and infinities included."""
    assert condition.kind in "bt"
    if condition.kind == "t":
        typed = Value(condition.program, 0, "s")  # carries the kind for constants
        return condition.put("swhere", "s", condition, typed.like(yes), typed.like(no))
    shown = yes if isinstance(yes, Value) else no if isinstance(no, Value) else None
    kind: Kind = "f" if shown is None else shown.kind
    typed = Value(condition.program, 0, kind)
    return condition.put("where", kind, condition, typed.like(yes), typed.like(no))


def fused(a: Value, b: Value | float, c: Value | float) -> Value:
    """a * b + c of fp32, rounded once."""
    assert a.kind == "s"
    return a.put("sfma", "s", a, a.like(b), a.like(c))


def signed(magnitude: Value, shown: Value) -> Value:
    """fp32: the magnitude (>= 0) with the sign of the other."""
    assert magnitude.kind == "s"
    return magnitude.put("ssign", "s", magnitude, shown)


def power_of_two(shifted: Value) -> Value:
    """fp32: 2^k from 1.5 * 2^23 + k."""
    assert shifted.kind == "s"
    return shifted.put("spower", "s", shifted)


def guessed_inverse(x: Value) -> Value:
    """fp32: a number near 1 / x, from the bits of x."""
    assert x.kind == "s"
    return x.put("sguess", "s", x)


def is_single(value: float) -> bool:
    """Whether it is an fp32."""
    return math.isnan(value) or math.isinf(value) or struct.unpack("<f", struct.pack("<f", value))[0] == value


def wrapped(value: int) -> int:
    """A whole number as int64, wrapping around."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def bits_of(value: float) -> int:
    """The 64 bits of a Python float as int64."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def traced(
    name: str, function: Callable[..., Value], tensors: int, scalars: int, single: bool = False
) -> Formula:  # fmt: skip
    """The program of a Python function over `tensors` + `scalars` values of fp64, or fp32 if it is to be `single`."""
    program = _Program()
    kind: Kind = "s" if single else "f"
    inputs = [program.put("tensor", kind, (), number) for number in range(tensors)]
    inputs += [program.put("scalar", kind, (), number) for number in range(scalars)]
    result = function(*inputs)
    assert result.kind == kind
    needed = {result.number}
    for number in range(result.number, -1, -1):
        if number in needed:
            needed.update(program.nodes[number].args)
    order = sorted(needed)
    place = {old: new for new, old in enumerate(order)}
    nodes = [program.nodes[old] for old in order]
    nodes = [Node(node.op, node.kind, tuple(place[arg] for arg in node.args), node.value) for node in nodes]
    return Formula(name, tensors, scalars, tuple(nodes), single)
