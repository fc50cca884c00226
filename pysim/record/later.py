# SPDX-License-Identifier: Apache-2.0
"""Sequences that are computed when they are first read: the alternatives of a plan, which most callers never look at.

Worked number: a Later of a function that returns [2, 3] has two elements; the function is called once, by the first reader.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar, overload

T = TypeVar("T")


class Later(Sequence[T]):
    """The elements that a function returns. It is called at most once; equal to any sequence of equal elements."""

    def __init__(self, compute: Callable[[], Iterable[T]]) -> None:
        self._compute = compute

    @cached_property
    def _values(self) -> tuple[T, ...]:
        return tuple(self._compute())

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        return self._values[at]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._values == tuple(other)

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[type, tuple[tuple[T, ...]]]:
        return tuple, (self._values,)
