# SPDX-License-Identifier: Apache-2.0
"""Integer expressions as text, evaluated over arrays: no names but those given, no calls, no attributes, no `eval`.

    + - * // % ^ & | << >>    integers, as in Python: // and % round down, ^ is exclusive or
    < <= > >= == !=           1 or 0; and, or, not combine them

Worked number: over lane = 0..31, "lane // 4 * 32 + lane % 4" is 0 1 2 3 32 33 34 35 64 ..., "lane ^ 1" is 1 0 3 2 ...
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError, choose

Integers = NDArray[np.int64]
_LONGEST = 1000  # characters
_LARGEST = 1 << 53  # magnitude of a result: exact in a float too, which is how overflow is seen

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(text: str, names: Mapping[str, Integers]) -> Integers:
    """The value of `text` where its names have these values; arrays broadcast. Raises only ProblemError."""
    if len(text) > _LONGEST:
        raise ProblemError(f"the expression has {len(text)} characters; {_LONGEST} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return np.asarray(_value(tree.body, names), np.int64)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ProblemError(f"{_quoted(text)} is not an expression: {reason}; expected e.g. lane // 4 * 32 + lane % 4") from None
    except ProblemError as error:
        raise ProblemError(f"{_quoted(text)}: {error}") from None


def _value(node: ast.expr, names: Mapping[str, Integers]) -> Integers:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return _bounded(float(number) if number.bit_length() < 1000 else np.inf, lambda: np.int64(number))
        case ast.Name(id=name):
            if name not in names:
                raise ProblemError(f'"{name}" is not known here; {choose(name, sorted(names))}')
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(op, _value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return np.negative(_value(operand, names))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.asarray(_value(operand, names) == 0, np.int64)
        case ast.BoolOp(op=op, values=values):
            fold = np.logical_and if isinstance(op, ast.And) else np.logical_or
            parts = np.broadcast_arrays(*[_value(value, names) for value in values])
            return np.asarray(fold.reduce(parts), np.int64)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return np.asarray(_COMPARE[type(op)](_value(left, names), _value(right, names)), np.int64)
    text = _quoted(ast.unparse(node))
    raise ProblemError(f"{text} is not allowed; use integers, names and + - * // % ^ & | << >>")


def _binary(op: ast.operator, left: Integers, right: Integers) -> Integers:
    if isinstance(op, ast.FloorDiv | ast.Mod) and (np.asarray(right) == 0).any():
        raise ProblemError(f"{'division' if isinstance(op, ast.FloorDiv) else 'remainder'} by zero")
    if isinstance(op, ast.LShift | ast.RShift) and ((np.asarray(right) < 0) | (np.asarray(right) > 62)).any():
        raise ProblemError("a shift should be by 0 to 62 bits")
    estimate: Any = 0.0  # of what may leave the range
    if isinstance(op, ast.Add | ast.Sub | ast.Mult):
        estimate = _BINARY[type(op)](np.asarray(left, np.float64), np.asarray(right, np.float64))
    elif isinstance(op, ast.LShift):
        estimate = np.asarray(left, np.float64) * np.exp2(np.asarray(right, np.float64))
    return _bounded(estimate, lambda: _BINARY[type(op)](left, right))


def _bounded(estimate: Any, exact: Callable[[], Any]) -> Integers:
    if (np.abs(estimate) > _LARGEST).any():
        raise ProblemError(f"a value is beyond {_LARGEST}")
    return np.asarray(exact(), np.int64)


def _quoted(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return f'"{shown}"' if len(shown) <= 80 else f'"{shown[:77]}..."'
