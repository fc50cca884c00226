# SPDX-License-Identifier: Apache-2.0
"""What is made once and then used by many calls, of many threads: `once` for a process, `Recent` for the last keys that were asked for."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, Protocol, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Once(Protocol[T_co]):
    def __call__(self) -> T_co: ...
    def cache_clear(self) -> None: ...


def once(make: Callable[[], T]) -> Once[T]:
    """As `functools.cache` for a function without arguments, but first calls of several threads run it once: the others wait."""
    lock, made = RLock(), list[T]()

    def get() -> T:
        for one in made:
            return one
        with lock:
            if not made:
                made.append(make())
            return made[0]

    get.__doc__, get.__name__ = make.__doc__, make.__name__
    get.cache_clear = made.clear  # type: ignore[attr-defined]
    return cast("Once[T]", get)


class Recent(Generic[T]):
    """A mapping that keeps the `size` entries used last. A key that cannot be hashed has no entry."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        try:
            found = self._kept[key]
            self._kept.move_to_end(key)
        except (KeyError, TypeError):  # not there, gone between both lines, not hashable
            return None
        return found

    def put(self, key: Hashable, value: T) -> T:
        try:
            self._kept[key] = value
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)
        except (KeyError, TypeError):  # another thread emptied it first, not hashable
            pass
        return value

    def values(self) -> list[T]:
        return list(self._kept.values())

    def __reduce__(self) -> tuple[type["Recent[T]"], tuple[int]]:
        """A copy keeps nothing: what is kept can be made again, and may not be copied, as native structs."""
        return type(self), (self.size,)

    def clear(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
