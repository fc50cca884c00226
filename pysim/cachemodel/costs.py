# SPDX-License-Identifier: Apache-2.0
"""What the candidates of an algorithm cost, as arrays, and single candidates as values.

Worked number: of candidates that take 30, 10 and 20 cycles, `selected([False, True, True])` has those of 10 and 20.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pysim.record.cost import Cost, CsaCost, Reason
from pysim.record.schedule import AnySchedule

Value = TypeVar("Value", bound=Hashable)


class Costs(NamedTuple):
    """The costs of the candidates of one algorithm. Each array has an element per candidate unless said otherwise.

    cycles            at the machine's clock
    kernel, kernels   `kernel` indexes `kernels`, names of registry rows
    kind, kinds       `kind` indexes `kinds`, which a plan lists side by side (stationary operand, decomposition)
    bounds            per kernel: a lower bound on the cycles of all its schedules
    alike             candidates with equal numbers have the same tolerance
    schedule, cost    of one candidate: the struct that the native library obeys; its cost by terms and levels
    assumed           of one candidate: paths of the machine's numbers that its cost uses and nobody measured or published
    refused           per kernel whose schedules are all too inaccurate: the least error among them, and the reason
    lost              kinds whose candidates are all too inaccurate
    """

    cycles: NDArray[np.float64]
    kernels: tuple[str, ...]
    kernel: NDArray[np.int64]
    kinds: tuple[str, ...]
    kind: NDArray[np.int64]
    bounds: NDArray[np.float64]
    alike: NDArray[np.int64]
    schedule: Callable[[int], AnySchedule]
    cost: Callable[[int], Cost | CsaCost]
    assumed: Callable[[int], tuple[str, ...]]
    refused: Mapping[int, tuple[float, Reason]] = {}
    lost: tuple[int, ...] = ()

    def selected(self, keep: NDArray[np.bool_]) -> "Costs":
        """The costs of the candidates for which `keep` is true."""
        rows = np.flatnonzero(keep).tolist()
        arrays = {name: getattr(self, name)[rows] for name in ("cycles", "kernel", "kind", "alike")}
        return self._replace(
            **arrays,
            schedule=lambda row: self.schedule(rows[row]),
            cost=lambda row: self.cost(rows[row]),
            assumed=lambda row: self.assumed(rows[row]),
        )


def numbered(values: Iterable[Value]) -> tuple[tuple[Value, ...], NDArray[np.int64]]:
    """The distinct values in order of appearance, and the index of each among them: a, b, a gives (a, b) and 0, 1, 0."""
    places: dict[Value, int] = {}
    numbers = [places.setdefault(value, len(places)) for value in values]
    return tuple(places), np.array(numbers, dtype=np.int64)
