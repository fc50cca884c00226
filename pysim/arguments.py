# SPDX-License-Identifier: Apache-2.0
"""Checks of API arguments. Each returns a plain Python value, or raises OperandError with the argument and the accepted values.

NumPy scalars are accepted like Python's. A bool is not accepted as a number, nor 1.0 as an integer: both equal 1, so a cache keyed by the
argument would confuse them with 1.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pysim.errors import OperandError, PysimError, choose, quoted

LARGEST = 2**63 - 1
MOST_THREADS = 1024  # per call: MAX_THREADS of native/threads/thread_pool.c


def whole(value: Any, name: str, least: int, most: int = LARGEST) -> int:
    """An integer from `least` to `most`."""
    if type(value) is not int:
        try:
            value = operator.index(cast("Any", None if _is_bool(value) else value))
        except TypeError:
            raise OperandError(f"{name} is {quoted(value)}; expected a whole number, at least {least}") from None
    if not least <= value <= most:
        raise OperandError(f"{name} is {value}; expected {f'at least {least}' if value < least else f'at most {most}'}")
    return int(value)


def wholes(value: Any, name: str, least: int, counts: tuple[int, ...], right: str) -> tuple[int, ...]:
    """A tuple of integers whose length is in `counts`. A single integer is repeated to the shortest length. `right`: their meaning, for the
    message."""
    if (isinstance(value, Sequence) and not isinstance(value, str)) or getattr(value, "ndim", 0) == 1:
        if len(value) not in counts:
            raise OperandError(f"{name} is {quoted(value)}; expected one whole number or {right}")
        return tuple(whole(item, name, least) for item in value)
    return (whole(value, name, least),) * counts[0]


def number(value: Any, name: str) -> float:
    """A finite number."""
    if type(value) is not float:
        try:
            value = float(cast("Any", None if _is_bool(value) or isinstance(value, str | bytes) else value))
        except (TypeError, ValueError, OverflowError):
            raise OperandError(f"{name} is {quoted(value)}; expected a number") from None
    if not math.isfinite(value):
        raise OperandError(f"{name} is {value}; expected a finite number")
    return float(value)


def seconds(value: Any, name: str) -> float:
    """A finite time of at least 0 s."""
    if (found := number(value, name)) < 0:
        raise OperandError(f"{name} is {found:g} seconds; expected at least 0")
    return found


# activations with two numbers, as a caller writes them
_WITH_NUMBERS = {
    "clamp": "('clamp', low, high), low at most high",
    "leaky_relu": "('leaky_relu', factor of negative numbers, factor of others)",
    "elu": "('elu', factor of e^x - 1 of negative numbers, factor of others)",
}
Activation = str | tuple[str, float, float] | None


def activation(given: Any, numbers: Mapping[str, int]) -> tuple[int, float, float]:
    """(number, low, high) of an activation: None, a name in `numbers`, or one of `_WITH_NUMBERS` with its two numbers."""
    name, low, high = given if isinstance(given, tuple) and len(given) == 3 else (given, -math.inf, math.inf)
    name = "identity" if name is None else name
    try:
        low, high = float(low), float(high)
    except (TypeError, ValueError):
        raise OperandError(f"activation is {quoted(given)}; a tuple is a name and two numbers: {_WITH_NUMBERS['clamp']}") from None
    if not isinstance(name, str) or name not in numbers:
        raise OperandError(f"activation {quoted(name)} is not known; {choose(name, numbers)}, clamp as ('clamp', low, high)")
    if name in _WITH_NUMBERS and not (isinstance(given, tuple) and (name != "clamp" or low <= high)):
        raise OperandError(f"{name} needs its numbers: activation={_WITH_NUMBERS[name]}")
    if name not in _WITH_NUMBERS and isinstance(given, tuple):
        raise OperandError(f"activation is {quoted(given)}, and {name} has no bounds: activation={name!r}")
    return numbers[name], low, high


EXACT_ACTIVATIONS = (None, "identity", "relu", "clamp", "leaky_relu", "hard_swish")  # of additions and multiplications


def refuse_inexact(given: Activation, dtype: str) -> None:
    """OperandError for an activation whose bits are the C library's."""
    name = given[0] if isinstance(given, tuple) else given
    if dtype != "f32" and name not in EXACT_ACTIVATIONS:
        right = ", ".join(one for one in EXACT_ACTIVATIONS if one)
        raise OperandError(f"the bits of {quoted(name)} of {dtype} are the C library's; accuracy reproducible takes {right} there")


def flag(value: Any, name: str) -> bool:
    """A Python or NumPy bool."""
    if _is_bool(value):
        return bool(value)
    raise OperandError(f"{name} is {quoted(value)}; expected True or False")


def word(value: Any, what: str, known: Iterable[str], wrong: type[PysimError] = OperandError) -> str:
    """One of the `known` words. Raises `wrong` with the closest word and the whole list."""
    words = tuple(known)
    if not isinstance(value, str) or value not in words:
        raise wrong(f"no {what} is named {quoted(value)}; {choose(value, words)}")
    return value


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (str(getattr(value, "dtype", "")) == "bool" and getattr(value, "shape", None) == ())
