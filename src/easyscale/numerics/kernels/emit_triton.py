"""Writes a formula as the text of a Triton function over fp64 values; to be launched with `enable_fp_fusion=False`.

    f_NAME(t0, ..., s0, ...)      blocks or scalars of tl.float64 in, fp64 out; of tl.float32 if it is `single`

Constants are written by their bits, since a Python float beside a block may become fp32. Division and square root of
fp64 are the correctly rounded ones (PTX has no others); a minus sign is a flipped bit, since Triton's `-x` is `0 - x`.
Standard library only; whoever runs the text has `triton` and `tl` in scope.
"""

from __future__ import annotations

import struct

from easyscale.numerics.kernels.tracing import GUESS, Formula, Node, bits_of

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==",
    "iadd": "+", "isub": "-", "iand": "&", "ior": "|", "ixor": "^", "ishl": "<<", "and": "&", "or": "|",
    "sadd": "+", "ssub": "-", "smul": "*", "slt": "<",
}  # fmt: skip
_SIGN = -(1 << 63)
_SIGN_SINGLE = -(1 << 31)


def whole(value: int) -> str:
    return f"tl.full((), {value}, tl.int64)"


def short(value: int) -> str:
    return f"tl.full((), {value}, tl.int32)"


def constant(value: float) -> str:
    return f"{whole(bits_of(value))}.to(tl.float64, bitcast=True)"


def constant_single(value: float) -> str:
    bits = int.from_bytes(struct.pack("<f", value), "little", signed=True)
    return f"{short(bits)}.to(tl.float32, bitcast=True)"


def flipped(value: str, operator: str, mask: int) -> str:
    return f"({value}.to(tl.int64, bitcast=True) {operator} {whole(mask)}).to(tl.float64, bitcast=True)"


def bits_single(value: str) -> str:
    return f"{value}.to(tl.int32, bitcast=True)"


def from_bits_single(value: str) -> str:
    return f"({value}).to(tl.float32, bitcast=True)"


def expression(node: Node, places: dict[int, int]) -> str:
    """One operation as an expression of v0, v1, ...; `places` has the constants that are numbers of places to shift."""
    args = [f"v{arg}" for arg in node.args]
    match node.op:
        case "tensor":
            return f"t{node.value}"
        case "scalar":
            return f"s{node.value}"
        case "constant":
            if node.kind == "i":
                return whole(int(node.value))
            return constant(float(node.value)) if node.kind == "f" else constant_single(float(node.value))
        case "where" | "swhere":
            return f"tl.where({', '.join(args)})"
        case "sqrt":
            return f"tl.sqrt({args[0]})"
        case "neg":
            return flipped(args[0], "^", _SIGN)
        case "abs":
            return flipped(args[0], "&", ~_SIGN)
        case "bits":
            return f"{args[0]}.to(tl.int64, bitcast=True)"
        case "from_bits":
            return f"{args[0]}.to(tl.float64, bitcast=True)"
        case "not":
            return f"{args[0]} == 0"
        case "sfma":
            return f"tl.fma({', '.join(args)})"
        case "sneg":
            return from_bits_single(f"{bits_single(args[0])} ^ {short(_SIGN_SINGLE)}")
        case "sabs":
            return from_bits_single(f"{bits_single(args[0])} & {short(~_SIGN_SINGLE)}")
        case "ssign":
            sign = f"({bits_single(args[1])} & {short(_SIGN_SINGLE)})"
            return from_bits_single(f"{bits_single(args[0])} | {sign}")
        case "sguess":
            return from_bits_single(f"{short(GUESS)} - {bits_single(args[0])}")
        case "spower":
            return from_bits_single(f"({bits_single(args[0])} + {short(127)}) << {short(23)}")
        case "ishr":
            mask = (1 << (64 - places[node.args[1]])) - 1
            return f"({args[0]} >> {args[1]}) & {whole(mask)}"
    return f"{args[0]} {_INFIX[node.op]} {args[1]}"


def triton_source(formula: Formula) -> str:
    """The text of `@triton.jit def f_NAME(...)`."""
    inputs = [f"t{i}" for i in range(formula.tensors)] + [f"s{i}" for i in range(formula.scalars)]
    places = {
        number: int(node.value)
        for number, node in enumerate(formula.nodes)
        if node.op == "constant" and node.kind == "i"
    }
    lines = ["@triton.jit", f"def f_{formula.name}({', '.join(inputs)}):"]
    lines += [f"    v{number} = {expression(node, places)}" for number, node in enumerate(formula.nodes)]
    return "\n".join([*lines, f"    return v{len(formula.nodes) - 1}", ""])
