# SPDX-License-Identifier: Apache-2.0
"""Legal schedules: micro-kernels that the machine can run, and tile sizes worth predicting.

Channels of a set: balanced parts ceil(C / j), powers of two, and for each kernel the most that keep one tile of each operand in L1
(equation 2 of `pysim.cachemodel.cpu.csa` over the usable ways of L1). K2 and K3: balanced parts of their tile counts, and the most that
equations 4 and 5 keep in L2 and L3, balanced too. A schedule with the same loops as another is left out.

Worked number: 784 window tiles in parts of at most 160 are 5 parts of 157 tiles, not 4 of 160 and one of 144.
"""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Rates
from pysim.cachemodel.cpu.nest import Nest, ceil_div
from pysim.cachemodel.cpu.tables import OfTable, Table, fetch_cycles, select
from pysim.cachemodel.equations import columns_of, empty
from pysim.errors import PlanError
from pysim.machine.cpu import Level, Machine
from pysim.record.accuracy import Accuracy
from pysim.record.cost import Reason, Rejected
from pysim.record.plan import MicroKernel, named
from pysim.registry.cpu import Kernel, kernels

_CHANNEL_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_K2_PARTS, _K3_PARTS = (1.0, 2.0, 4.0, 8.0, 24.0), (1.0, 4.0)
_MIN_ITERATIONS = 64  # of k; shorter inner loops cost more in calls than caches save
# The longest set of k of a product of split operands, which a unit sums in one chain: errors with 512 of k were 1.5e-6 of the rms, with
# 1,024 3.1e-6, MKL's 2.2e-6 (products of 1024, operands in [-1, 1)), at the same speed
_SPLIT_SET = 512


Forms = str | tuple[str, ...] | None  # of kernels; None: any


class Rows(NamedTuple):
    """Registry rows that can run a problem on a machine, and the others with the reason."""

    kernels: tuple[Kernel, ...]
    rejected: tuple[Rejected, ...]


def row_refuses(kernel: Kernel, machine: Machine, micro_kernel: MicroKernel) -> Reason | None:
    """Why a machine cannot run a row, or why the row is not the requested micro-kernel."""
    if machine.unit(kernel.target) is None:
        return Reason("machine", f"{machine.name} has no {kernel.target} unit")
    if micro_kernel not in (None, kernel.name, (kernel.windows, kernel.filters)):
        return Reason("shape", f"its tile is {kernel.windows}x{kernel.filters}, {named(micro_kernel)} was asked for")
    return None


def build_refuses(kernel: Kernel, machine: Machine) -> Reason | None:
    """Whether the machine's library was built without a row that its unit runs."""
    if kernel.left_out and machine.unit_of(kernel.target).planes_alone:
        return Reason("build", f"the library of {machine.name} leaves it out; with -Dtargets=all (PYSIM_TARGETS=all tools/setup) it has it")
    return None


def _form_refuses(kernel: Kernel, form: Forms) -> Reason | None:
    forms = (form,) if isinstance(form, str) else form
    if kernel.form in forms if forms is not None else not kernel.reads_rows:
        return None
    if forms is None:
        return Reason("shape", "it reads pixels with channels last")
    return Reason("shape", f"it is of form {kernel.form}, and {' or '.join(forms)} is needed")


def _weights_refuse(kernel: Kernel, micro_kernel: MicroKernel, bounded: bool) -> Reason | None:
    if not kernel.lists or bounded or micro_kernel == kernel.name:
        return None
    return Reason("shape", "weights are not known to fit its sums of 16 bits")


def _accuracy_refuses(kernel: Kernel, accuracy: Accuracy) -> Reason | None:
    reproducible = accuracy == "reproducible"
    if kernel.split and accuracy in ("ieee", "reproducible"):
        return Reason("accuracy", f"its operands are split; accuracy {accuracy} takes multiply-adds in {kernel.dtype} only")
    if reproducible and not kernel.fused and kernel.dtype != "s8":
        return Reason(
            "accuracy",
            "its compiler or tiles decide how sums round; accuracy reproducible takes multiply-adds that round once, in one order",
        )
    if not reproducible and kernel.slow:
        return Reason("accuracy", "it computes slowly what accuracy reproducible promises on any CPU; other rows are as accurate")
    return None


@lru_cache(maxsize=256)
def rows(
    machine: Machine,
    dtype: str,
    micro_kernel: MicroKernel = None,
    form: Forms = None,
    accuracy: Accuracy = "standard",
    bounded: bool = False,
) -> Rows:
    """The micro-kernels of `dtype` for the units of `machine`, restricted to `micro_kernel` and to a `form` or some if given.
    `bounded`: as in a request. `accuracy`: "ieee" takes those that multiply and add in the type, "reproducible" of these such whose
    multiply-adds round once; the slow ones in plain C are for the latter alone.

    Raises PlanError, which says what is missing, if the machine runs none of that type.
    """
    legal, rejected, others = [], [], 0
    for kernel in kernels():
        if kernel.dtype != dtype:
            others += 1
        elif reason := (
            row_refuses(kernel, machine, micro_kernel)
            or _form_refuses(kernel, form)
            or _weights_refuse(kernel, micro_kernel, bounded)
            or _accuracy_refuses(kernel, accuracy)
        ):
            rejected.append(Rejected(kernel.name, reason.sentence, reason.code))
        else:
            legal.append(kernel)
    if others:
        rejected.append(Rejected(f"{others} kernels of another type", f"the problem is {dtype}", "type"))
    if not any(kernel.dtype == dtype and machine.unit(kernel.target) for kernel in kernels()):
        raise PlanError(_nothing_runs(machine, dtype))
    return Rows(tuple(legal), tuple(rejected))


def _nothing_runs(machine: Machine, dtype: str) -> str:
    targets = ", ".join(sorted({kernel.target for kernel in kernels() if kernel.dtype == dtype}))
    if not targets:
        known = ", ".join(sorted({kernel.dtype for kernel in kernels()}))
        return f"there is no {dtype} micro-kernel for CPUs; there are (native/kernels.inc): {known}"
    have = ", ".join(sorted(unit.target for unit in machine.core.units))
    return f"{machine.name} has the units {have}, but {dtype} micro-kernels exist for {targets} only; add a row for one of its units"


def in_place_reason(nest: Nest) -> Rejected | None:
    """Why the micro-kernel cannot read the windows in place, or None if it can."""
    if nest.in_place:
        return None
    if nest.windows_transposed:
        return Rejected("pack none", "B is transposed, so a tile's columns are not consecutive in memory", "shape")
    return Rejected("pack none", "only an unpadded 1x1 convolution of stride 1 has its windows consecutive in memory", "shape")


def table(rates: Rates) -> Table:
    """All candidate schedules, input stationary before weight stationary."""
    return tiled(sets(rates))[0]


def sets(rates: Rates, channels: int | None = None) -> Table:
    """The kernels, loop orders, places of the windows and sets of channels of all candidates. K2 and K3, which `tiled` adds, are those of
    the least compute: sets of all kept tiles. `channels`: the only size of a set."""
    nest = rates.nest
    keeps, packed, kernel, rescales, split = _without_sizes(rates.kernels, nest.in_place, nest.windows_packed)
    of, total = rates.of(kernel), nest.group_channels
    window, out = _window_bytes(of, packed), of.windows * of.filters * nest.stored_bytes
    most = (usable(_level(rates, 0)) - out) / (window + of.stored_tile)
    if channels is None:
        sizes, new = _with_own(np.array(_channel_parts(total, nest.taps)), balanced(total, most))  # channels that fit L1
    else:
        sizes, new = np.full((kernel.size, 1), float(channels)), np.ones((kernel.size, 1), dtype=bool)
    whole, short = ~rescales[:, None] | (sizes == total), ~split[:, None] | (nest.taps > 1) | (sizes <= _SPLIT_SET)
    row, column = np.nonzero(new & whole & ((channels is not None) | short))
    of, keeps = of.of(row), keeps[row]
    kept = np.where(keeps, of.window_tiles, of.filter_tiles)
    return Table(of, keeps, kernel[row], packed[row], sizes[row, column], np.ones(row.size), kept)


@lru_cache(maxsize=256)
def _without_sizes(kernels: tuple[Kernel, ...], in_place: bool, windows_packed: bool) -> tuple[NDArray[Any], ...]:
    """Columns of `sets`, whatever the sizes: `keeps_windows`, `packed` and `kernel` of a table, whether sums of bytes are rescaled in the
    store, so that a tile has all channels, and whether operands are split."""
    places = (0.0,) if windows_packed else (1.0, 0.0) if in_place else (1.0,)
    legal = [
        (keeps, place, at, one.group > 1 and one.dtype == "s8", one.split)
        for keeps, place, (at, one) in itertools.product((True, False), places, enumerate(kernels))
        if place or windows_packed or one.group == 1  # groups of k are packed
    ]
    return tuple(np.array(column) for column in zip(*legal, strict=True))


def tiled(sets: Table) -> tuple[Table, NDArray[np.int64]]:
    """The candidates with these sets of channels, in their order: every K2, and each with every K3. Second, the row of each in `sets`."""
    (k2, k3, new), _ = _sizes(sets)
    row, of_k2, of_k3 = new.transpose(2, 0, 1).nonzero()
    return msgspec.structs.replace(select(sets, row), k2=k2[of_k2, row], k3=k3[of_k2, of_k3, row]), row


@OfTable
def _sizes(sets: Table) -> tuple[Sequence[Array], None]:
    """K2 of each candidate, K3 of each with every K2, and which of these pairs are new."""
    rates, swap = sets.rates, sets.keeps_windows
    window, filters = _window_bytes(rates, sets.packed) * sets.channels, rates.stored_tile * sets.channels
    out = rates.windows * rates.filters * rates.nest.stored_bytes
    kept, streamed = np.where(swap, window, filters), np.where(swap, filters, window)
    n_windows, n_filters = rates.window_tiles, rates.filter_tiles
    n_kept, n_streamed = np.where(swap, n_windows, n_filters), np.where(swap, n_filters, n_windows)

    k2, new_k2 = _counts(n_streamed, _K2_PARTS, (usable(_level(rates, 1)) - kept) / (streamed + out))
    k3, new = empty((2, len(k2), len(_K3_PARTS) + 1), sets.columns)
    for at, of in enumerate(k2):
        k3[at], new_k3 = _counts(n_kept, _K3_PARTS, (usable(_level(rates, 2)) - of * streamed) / (kept + of * out))
        new[at] = new_k2[at] * new_k3
        new[at, 1:] *= 1 - (swap & (of >= n_streamed))  # input stationary with one set of filter tiles: K3 changes nothing
    return (k2, k3, new), None


def _level(rates: Rates, at: int) -> Level:
    """A level of cache, or the last one."""
    levels = rates.machine.levels
    return levels[min(at, len(levels) - 1)]


def _window_bytes(rates: Rates, packed: Array) -> Array:
    """Bytes of a tile of windows for one channel."""
    return np.where(packed > 0, rates.windows * rates.packed_window, rates.windows * rates.nest.element_bytes + rates.place_edge)


def least_cycles(rates: Rates, sets: Array | float = 1.0, packed: Array | float | None = None) -> Array:
    """A lower bound on the compute cycles of schedules of each kernel with `sets` channel sets: each operand is packed once,
    from beyond L1 if it does not fit there.

    `packed` is 1 if windows are packed, 0 if they are read in place; by default they are in place if that is possible.
    """
    nest, core = rates.nest, rates.machine.core
    if packed is None:
        packed = 0.0 if nest.in_place else 1.0
    calls = nest.repeats * rates.window_tiles * rates.filter_tiles
    per_set = rates.store + calls * rates.tile_call.min() + packed * core.pack_call_cycles.value * rates.pack_calls
    once = rates.kernel + packed * (rates.pack + fetch_cycles(rates))
    if not nest.filters_packed:
        per_set += core.call_cycles.value * nest.repeats * rates.filter_tiles
        once += rates.pack_filters
    return once + sets * per_set + (sets - 1) * rates.reload


def usable(level: Level) -> float:
    """Bytes for operands with reuse: all ways but one, which is left to streamed data (BLIS model)."""
    return level.way_bytes * max(1, level.ways - 1)


@lru_cache(maxsize=1024)
def _channel_parts(total: int, taps: int) -> tuple[float, ...]:
    """Channels of a set for any kernel: balanced parts and powers of two, unless calls would dominate."""
    parts = {ceil_div(total, part) for part in _CHANNEL_PARTS} | {1 << bit for bit in range(total.bit_length())}
    return tuple(float(part) for part in sorted(parts) if part * taps >= min(_MIN_ITERATIONS, total * taps))


def _counts(total: Array, parts: Sequence[float], most: Array) -> tuple[Array, Array]:
    """Tiles of a set, candidates x rows, and 1 for those that are new: balanced parts of `total`, and of at most `most`."""
    values, new = empty((2, len(parts) + 1), columns_of(total))
    for at, part in enumerate(parts):
        values[at] = np.ceil(total / part)
        new[at] = 1.0 * (values[at] != values[at - 1]) if at else 1.0
    own = values[-1] = balanced(total, most)
    new[-1] = math.prod(1.0 * (other != own) for other in values[:-1])
    return values, new


def _with_own(common: Array, own: Array) -> tuple[Array, NDArray[np.bool_]]:
    """`common` candidates with a row's `own` as the last column, and which are new: all but an `own` that is among `common`."""
    values = np.empty((common.shape[-1] + 1, own.size)).T  # column by column: rows are short
    values[:, :-1] = common
    values[:, -1] = own
    new = np.ones(values.shape, dtype=bool, order="F")
    new[:, -1] = (values[:, :-1] != own[:, None]).all(axis=1)
    return values, new


def balanced(total: Array | int, most: Array) -> Array:
    """The size of the fewest equal parts of `total` that hold at most `most` each (at least 1)."""
    most = np.minimum(np.maximum(np.floor(most), 1), total)
    size: Array = np.ceil(total / np.ceil(total / most))
    return size
