# SPDX-License-Identifier: Apache-2.0
"""The common base of problems, and checks of their fields."""

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from pysim.errors import ProblemError, choose
from pysim.problem.dtypes import RESULT_BYTES, SIZES

INT64_MAX = (1 << 63) - 1


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """The common base of problems: the operands' type, by its name in the table of types."""

    dtype: str = "f32"

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand's element, in memory."""
        return SIZES[self.dtype]

    @property
    def result_bytes(self) -> int:
        """Bytes of the result's element, on a CPU."""
        return RESULT_BYTES[self.dtype]


@cache
def _least_of(problem: type[Typed]) -> tuple[tuple[str, int], ...]:
    """Fields and the least number that a size may be; more than any for those that are no sizes."""
    least = {"dtype": INT64_MAX + 1, "trans": INT64_MAX + 1, "pad": 0}
    return tuple((name, least.get(name.partition("_")[0], 1)) for name in problem.__struct_fields__)


def check_fields(problem: Any, dtypes: Sequence[str]) -> None:
    """Converts sizes to plain ints (NumPy's are accepted, but their products could wrap); ProblemError for invalid fields."""
    for name, least in _least_of(problem.__class__):
        value = getattr(problem, name)
        if type(value) is int and least <= value <= INT64_MAX:
            continue
        if name == "dtype":
            if not isinstance(value, str) or value not in dtypes:
                raise ProblemError(f"dtype is {quote(value)}; {choose(value, dtypes)}")
        elif name.startswith("trans_"):
            if not isinstance(value, bool):
                raise ProblemError(f"{name} is {quote(value)}; it should be True or False")
        else:
            if type(value) is not int:
                try:
                    value = operator.index(value)
                except TypeError:
                    raise ProblemError(f"{name} is {quote(value)}; it should be a whole number") from None
                force_setattr(problem, name, value)
            if not least <= value <= INT64_MAX:
                shown = value if abs(value) <= INT64_MAX else "beyond int64"
                raise ProblemError(f"{name} is {shown}; it should be at least {least} and fit in int64")


def check_int64(problem: Any, **elements: int) -> None:
    """ProblemError for operand bytes or FLOP beyond int64."""
    sizes = dict.fromkeys(("output", "C"), RESULT_BYTES[problem.dtype])
    counts = [(name, " in bytes", count * sizes.get(name, SIZES[problem.dtype])) for name, count in elements.items()]
    for name, unit, count in (*counts, ("FLOP count", "", problem.flops)):
        if count > INT64_MAX:
            what = f"the {name.replace('_', ' ')}{unit} would be {count:.2e}"
            raise ProblemError(f"{what}; it should fit in int64, so be at most {INT64_MAX:.2e}")


def quote(value: object) -> str:
    """For a message: a text in ASCII, shortened if long; for any other value its type."""
    if not isinstance(value, str):
        return f"a value of type {type(value).__name__}"
    return ascii(value) if len(value) <= 120 else ascii(value[:120]) + "..."
