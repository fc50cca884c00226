# SPDX-License-Identifier: Apache-2.0
"""What the candidates of an algorithm cost, as arrays, and single candidates as values.

Worked number: two rounds of candidates of one kernel take 30, 10 and 20 cycles; `picked` with the last two gives 10 and 20.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.record.cost import Cost, CsaCost, Reason
from pysim.record.schedule import AnySchedule


class Costs(NamedTuple):
    """The costs of the candidates of one algorithm; each array is over candidates unless said otherwise.

    `cycles` are at the machine's clock. `kernel` and `kind` index `kernels`, names of registry rows, and `kinds`, which a plan lists
    side by side (stationary operand, decomposition). `bounds`, over kernels, are lower bounds on the cycles of all schedules of a
    kernel. `alike` is equal for candidates with the same tolerance. For one candidate, `schedule` is the struct that the native library
    obeys, `cost` its cost by terms and levels, and `assumed` the paths of the machine's numbers in it that nobody measured or
    published.

    If candidates were left out as not accurate enough, `refused` has the least error and the reason of each kernel without candidates,
    by number, and `lost` the kinds without candidates.
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


def picked(rounds: Sequence[Costs], taken: NDArray[np.bool_] | None = None) -> Costs:
    """The costs of one algorithm from several rounds, in this order: of all candidates, or of those `taken`."""
    rows = [(one, row) for one in rounds for row in range(one.cycles.size)]
    kept = np.arange(len(rows)) if taken is None else np.flatnonzero(taken)
    cycles, kernel, kind, alike = (
        np.concatenate([getattr(one, name) for one in rounds])[kept] for name in ("cycles", "kernel", "kind", "alike")
    )
    own = [rows[at] for at in kept.tolist()]
    return rounds[0]._replace(
        cycles=cycles,
        kernel=kernel,
        kind=kind,
        alike=alike,
        schedule=lambda row: own[row][0].schedule(own[row][1]),
        cost=lambda row: own[row][0].cost(own[row][1]),
        assumed=lambda row: own[row][0].assumed(own[row][1]),
    )


def numbered(names: Iterable[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The distinct names in order of appearance, and the index of each name among them: a, b, a gives (a, b) and 0, 1, 0."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(name, len(places)) for name in names]
    return tuple(places), np.array(numbers, dtype=np.int64)
