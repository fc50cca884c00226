# SPDX-License-Identifier: Apache-2.0
"""Values computed once and shared by threads: `once` holds one value per process; `LruCache` holds those of the most recently used keys;
`lazy` is a property that an object computes when it is first read."""

import functools  # noqa: TC003  lazy, for mypy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


if TYPE_CHECKING:
    lazy = functools.cached_property
else:

    class lazy:  # noqa: N801  as functools.cached_property
        """`functools.cached_property` without the lock that it has before Python 3.12: threads that read it at once may each compute it."""

        def __init__(self, of: Callable[[Any], Any]) -> None:
            self.of, self.name, self.__doc__ = of, of.__name__, of.__doc__

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.of(instance)
            return value


class Once(Protocol[T_co]):
    def __call__(self) -> T_co: ...
    def cache_clear(self) -> None: ...


def once(make: Callable[[], T]) -> Once[T]:
    """`functools.cache` for a function without arguments, but if several threads call it first, one runs it and the others wait."""
    lock, results = RLock(), list[T]()

    def get() -> T:
        for one in results:
            return one
        with lock:
            if not results:
                results.append(make())
            return results[0]

    get.__doc__, get.__name__ = make.__doc__, make.__name__
    get.__wrapped__ = make  # type: ignore[attr-defined]
    get.cache_clear = results.clear  # type: ignore[attr-defined]  # functions have no such attribute until now
    return cast("Once[T]", get)


class LruCache(Generic[T]):
    """A thread-safe mapping that keeps the `size` most recently used entries. A key that cannot be hashed has no entry."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        try:
            value = self._entries[key]
            self._entries.move_to_end(key)
        except (KeyError, TypeError):  # absent, evicted by another thread between both lines, or not hashable
            return None
        return value

    def put(self, key: Hashable, value: T) -> T:
        try:
            self._entries[key] = value
            while len(self._entries) > self.size:
                self._entries.popitem(last=False)
        except (KeyError, TypeError):  # emptied by another thread, or not hashable
            pass
        return value

    def values(self) -> list[T]:
        return list(self._entries.values())

    def items(self) -> list[tuple[Hashable, T]]:
        return list(self._entries.items())

    def __reduce__(self) -> tuple[type["LruCache[T]"], tuple[int]]:
        """A copy is empty: entries can be computed again, and some, such as native structs, cannot be copied."""
        return type(self), (self.size,)

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
