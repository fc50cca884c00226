# SPDX-License-Identifier: Apache-2.0
"""What the candidates of an algorithm cost, as arrays, and one of them as values.

Worked number: of candidates that take 30, 10 and 20 cycles, two rounds of one kernel, rows 1 and 2 are those of 10 and 20.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.record.cost import Cost, CsaCost, Reason
from pysim.record.schedule import AnySchedule


class Costs(NamedTuple):
    """Of the candidates of one algorithm; each array is over candidates unless said otherwise.

    `cycles` at the machine's clock; `kernel` and `kind` index `kernels`, the names of registry rows, and `kinds`, what a plan lists side by
    side (stationary operand, decomposition); `bounds`, over kernels: cycles that no schedule of the kernel can go below; `alike` is the
    same for candidates that have the same tolerance. Of one candidate `schedule` is the struct that the native library obeys, `cost` what
    it costs by terms and levels, `assumed` the paths of the machine's numbers that this leans on and nobody measured or published.

    Where some were not accurate enough, `refused` says of kernels of which none is left why, and their least error, by number; `lost` are
    the kinds of which there were candidates and are none.
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
    """Those of one algorithm that were asked for one after another, in this order; all, or those `taken`."""
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
