# SPDX-License-Identifier: Apache-2.0
"""The cost of a plan on several threads: the largest part that one thread computes, as a problem of its own, on a machine whose shared
levels are divided.

    seconds(T) = seconds of the largest part, on the machine as one of T cores sees it, / share(T)  +  lines written_line
                 +  regions fork_join(T)

part      A nest divides images evenly if they are many or a multiple of T. Otherwise it also divides the tiles of each image into parts of
          windows x parts of filters, such that the largest part has the fewest tiles (`divide` of native/algorithms/nest/parts.h).
          Products on a matrix unit pack the panels of a channel set together and multiply then, in parts as square as can be, up to
          SHARED_ITEMS for a thread.
          Winograd divides blocks of panels and parts of the filters (native/algorithms/winograd.c), depthwise divides groups and then
          rows. Here a part has whole rows of outputs, and `share` is its exact number of tiles over that of those rows. Results do
          not depend on T: one thread computes a tile.
machine   Private levels keep data within a run, but nothing from the run before: threads move between CPUs, and parts between threads.
          A level that several cores share has for one part the share of its capacity (bytes of the part / bytes of the problem), since
          data that parts have in common is there once. Its bandwidth, and that of memory, is what one core alone gets, but at most the
          total over the busy cores; without a total in the file, each core has its own. A unit that busy CPUs slow down more than the
          rest of a core (`together` of the unit: tiles, which power limits) has its own such share.
share     The rate of each of T busy CPUs relative to one CPU alone (`core.together`): they share cores, clocks, or the host with others.
          A run waits for its slowest part. With n items for each thread, taken from a common queue,

              1 / share = 1 / mean + (1 / slowest - 1 / mean) / n

          lies between the slowest CPU (one piece) and the mean of all (many pieces). The slowest is that of as many CPUs as there are
          largest parts, (work of all) / (work of the largest), since a CPU with less work may be slower.
lines     False sharing: where tiles of windows start within a line of the output, two threads write it, and it comes from the other's
cache.
          In each row of outputs, the first channel set shares the ends towards parts of equal work, which are written at the same time;
          each further set shares both ends, written by others before. Waits for lines of a shared level hide these.
fork_join Starting and ending a parallel region costs a + b T: `fork_join_cycles` and `fork_join_thread_cycles` of the machine.

Assumptions: without `together`, all cores run at the clock of one; threads beyond the cores wait their turn.

Worked number: 56x56 windows in tiles of 32 are 98 tiles, 64 filters in tiles of 14 are 5. Sixteen threads: 16 parts of windows leave
7 x 5 = 35 tiles, 8 x 2 parts leave 13 x 3 = 39. So windows are divided, and the largest part has 35 of 490 tiles, 1/14.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from pysim.cachemodel.cpu.nest import ceil_div
from pysim.machine.cpu import Level, Machine, Memory, Together, Unit
from pysim.machine.quantity import Number
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule
from pysim.registry.cpu import cpu_kernel

FEW_IMAGES = 4  # a thread; MAX_UNEVEN_ITEMS of native/threads/thread_pool.c
SHARED_ITEMS, PART_TILES = 4, 16  # most parts of a thread that shares panels, fewest tiles of one; native/algorithms/nest/parts.h


class Part(NamedTuple):
    """The largest part of one thread: a problem under a schedule, computed `share` times in `items`; `regions`: forks and joins of a run.
    `seams`: runs of results that start where another thread's end, at multiples of `grain` bytes. `packing`: of
    packing the part's panels, what its thread does. `crossing`: bytes that come from other CPUs' caches, panels that these have packed and
    those that they have read."""

    problem: Workload
    schedule: Schedule
    share: float = 1.0
    regions: int = 1
    items: int = 1
    seams: int = 0
    grain: int = 1
    packing: float = 1.0
    crossing: float = 0.0


def parts_of_each(items: int, threads: int) -> int:
    """`pysim_split_count` of native/threads/thread_pool.c."""
    return threads // math.gcd(items, threads) if items < FEW_IMAGES * threads else 1


def grid(windows: int, filters: int, parts: int, shared: bool = False) -> tuple[int, int]:
    """Parts of window tiles and of filter tiles: `divide` of native/algorithms/nest/parts.h. `shared`: panels are."""

    def largest(of_filters: int) -> tuple[int, int]:
        across, down = ceil_div(windows, min(parts // of_filters, windows)), ceil_div(filters, of_filters)
        return across * down, (across + down) * shared

    of_filters = min(range(1, min(parts, filters) + 1), key=largest)
    return min(parts // of_filters, windows), of_filters


def shares_panels(w: Conv | Gemm, schedule: Schedule, threads: int) -> bool:
    """Whether threads pack the panels of a channel set together: `shares_panels` of native/algorithms/nest.c."""
    kernel = cpu_kernel(schedule.kernel)
    return threads > 1 and kernel is not None and kernel.form == "tiles" and isinstance(w, Gemm)


def shared_items(tiles: int, threads: int) -> int:
    """Parts of each thread that shares panels: `shared_parts` of native/algorithms/nest/parts.h."""
    return max(1, min(SHARED_ITEMS, tiles // (PART_TILES * threads)))


def nest_grid(images: int, windows: int, filters: int, threads: int, shared: bool) -> tuple[int, int]:
    """Parts of each image's window tiles and filter tiles; `shared`: panels are."""
    of_shared = threads * shared_items(windows * filters, threads)
    return grid(windows, filters, of_shared if shared else parts_of_each(images, threads), shared)


def nest_part(w: Conv | Gemm, schedule: Schedule, threads: int, prepared: bool = False) -> Part:
    """The largest part of a nest's schedule. `prepared`: panels of windows were packed before the run."""
    images, windows, filters = (1, w.n, w.m) if isinstance(w, Gemm) else (w.batch * w.groups, w.windows, w.group_filters)
    window_tiles, filter_tiles = ceil_div(windows, schedule.windows), ceil_div(filters, schedule.filters)
    shared = shares_panels(w, schedule, threads)
    of_windows, of_filters = grid(window_tiles, filter_tiles, threads if shared else parts_of_each(images, threads), shared)
    times = ceil_div(images * of_windows * of_filters, threads)
    most_windows, most_filters = ceil_div(window_tiles, of_windows), ceil_div(filter_tiles, of_filters)
    all_windows = windows
    windows, filters = min(windows, most_windows * schedule.windows), min(filters, most_filters * schedule.filters)
    streamed = most_filters if schedule.stationary == "input_stationary" else most_windows
    own = msgspec.structs.replace(schedule, k2=min(schedule.k2, streamed), k3=min(schedule.k3, most_windows + most_filters - streamed))
    result = w.result_bytes
    row, channels = (w.n, w.k) if isinstance(w, Gemm) else (w.windows, w.group_channels)
    neighbours, again = max(0, min(2, all_windows // windows - 1)), ceil_div(channels, schedule.channels) - 1
    seams = times * filters * (neighbours + 2 * (of_windows > 1) * again), math.gcd(row, schedule.windows) * result
    if isinstance(w, Gemm):
        part = Part(msgspec.structs.replace(w, n=windows, m=filters), own, 1.0, 1, times, *seams)
        return shared_part(part, threads, (window_tiles, filter_tiles), (most_windows, most_filters), prepared) if shared else part
    rows = ceil_div(windows, w.out_w)
    share = most_windows / ceil_div(rows * w.out_w, schedule.windows)
    return Part(rows_of(w, times, rows, filters), own, share, 1, times, *seams)


def shared_part(part: Part, threads: int, tiles: tuple[int, int], most: tuple[int, int], prepared: bool) -> Part:
    """A thread's part where all pack the panels of each set together: the neighbouring parts that it takes one after another, as one.
    `tiles`, `most`: of windows and of filters, of all threads and of one."""
    schedule, kernel = part.schedule, cpu_kernel(part.schedule.kernel)
    assert kernel is not None and isinstance(part.problem, Gemm)
    depth, own = part.problem.k, ceil_div(sum(tiles), threads)
    packed = schedule.windows * (not prepared), schedule.filters * (not kernel.in_rows)
    read = (threads - 1) / threads * sum(number * size for number, size in zip(most, packed, strict=True))
    written = sum(number * size for number, size in zip(tiles, packed, strict=True)) / threads
    sets, items = ceil_div(depth, schedule.channels), shared_items(math.prod(tiles), threads)
    return part._replace(regions=2 * sets, packing=own / sum(most), items=items, crossing=(read + written) * depth * kernel.panel_bytes)


def rows_of(w: Conv, images: int, rows: int, filters: int, groups: int = 1) -> Conv:
    """A convolution of some rows of outputs from the middle, for some images and groups, and some filters of each group."""
    cut = {}
    if w.is_volume and rows < w.out_rows:  # whole slices, or rows of one
        slices = ceil_div(rows, w.out_h)
        cut = {"depth": (slices - 1) * w.stride_d + w.dilation_d * (w.kernel_d - 1) + 1, "pad_front": 0, "pad_back": 0}
    if rows < w.out_h:
        cut |= {"height": (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1, "pad_top": 0, "pad_bottom": 0}
    channels = w.group_channels * groups
    return msgspec.structs.replace(w, batch=images, groups=groups, channels=channels, filters=filters * groups, **cut)


def touched_bytes(w: Workload) -> int:
    """Bytes of all operands."""
    return w.operand_elements * w.element_bytes + w.output_elements * w.result_bytes


def even_parts(w: Workload, threads: int) -> Iterator[Workload]:
    """The largest parts of all even divisions into rows of outputs x filters, without repetition."""
    found: set[Workload] = set()
    for of_filters in range(1, threads + 1):
        of_rows = threads // of_filters
        if of_rows * of_filters < threads - max(1, threads // 8):
            continue
        if isinstance(w, Gemm):
            found.add(msgspec.structs.replace(w, n=ceil_div(w.n, of_rows), m=ceil_div(w.m, of_filters)))
        elif w.batch * w.groups >= threads:
            groups = w.groups if w.batch >= threads else min(w.groups, max(2, ceil_div(w.batch * w.groups, threads)))
            found.add(rows_of(w, ceil_div(w.batch, threads), w.out_rows, w.group_filters, groups))
        else:
            rows, filters = ceil_div(w.out_rows, max(1, of_rows // w.batch)), ceil_div(w.group_filters, of_filters)
            found.add(rows_of(w, w.batch, rows, filters, w.groups))
    yield from sorted(found, key=lambda one: one.text)


def machine_of_one_core(machine: Machine, threads: int, part: float, items: int = 1, largest: float | None = None) -> Machine:
    """The machine as one of `threads` busy cores sees it; `part`: the share of the problem's bytes that the core touches, in `items`;
    `largest`: how many have the largest part."""
    if threads == 1:
        return machine

    def own(level: Level) -> Level:
        if not level.shared:
            return msgspec.structs.replace(level, starts_cold=True)
        one = _at_most(level, min(threads, level.cores or machine.cores))
        return msgspec.structs.replace(one, sets=max(1, round(level.sets * min(1.0, part))))

    memory = _at_most(machine.memory, min(threads, machine.cores))
    core, known, cores = machine.core, machine.core.together, min(threads, machine.cores)
    if any(unit.together for unit in core.units):
        shares = [_kept(unit.together, cores, items, largest) / _kept(known, cores, items, largest) for unit in core.units]
        core = msgspec.structs.replace(core, units=tuple(map(_slowed, core.units, shares)))
    return msgspec.structs.replace(machine, core=core, levels=tuple(map(own, machine.levels)), memory=memory)


def _slowed(unit: Unit, share: float) -> Unit:
    """A unit that busy CPUs slow down more than the rest of a core, which `busy_rate` counts."""
    if not unit.together or share >= 1:
        return unit
    types = tuple(msgspec.structs.replace(one, fma_per_cycle=_times(one.fma_per_cycle, share)) for one in unit.types)
    return msgspec.structs.replace(unit, fma_per_cycle=_times(unit.fma_per_cycle, share), types=types)


def _times(number: Number, share: float) -> Number:
    return msgspec.structs.replace(number, value=number.value * share)


Place = TypeVar("Place", Level, Memory)


def _at_most(place: Place, cores: int) -> Place:
    """With the bandwidth of one core, or its share of the total."""

    def one(own: Number, total: Number | None) -> Number:
        return own if total is None else msgspec.structs.replace(own, value=min(own.value, total.value / cores))

    read, written = place.read_bytes_per_cycle, place.write_bytes_per_cycle
    return msgspec.structs.replace(
        place,
        read_bytes_per_cycle=one(read, place.total_read_bytes_per_cycle),
        write_bytes_per_cycle=one(written, place.total_write_bytes_per_cycle),
    )


def fork_join_cycles(machine: Machine, threads: int) -> float:
    """Cycles of one parallel region."""
    core = machine.core
    first, each = core.fork_join_cycles, core.fork_join_thread_cycles
    return (first.value if first else 0.0) + (each.value if each else 0.0) * threads if threads > 1 else 0.0


def busy_rate(machine: Machine, threads: int, items: int = 1, largest: float | None = None) -> float:
    """The rate of each of `threads` CPUs relative to one CPU alone, with `items` for each; `largest`: how many have the largest part."""
    return _kept(machine.core.together, threads, items, largest)


def _kept(known: Sequence[Together], threads: int, items: int, largest: float | None) -> float:
    """The same of what is `known`, interpolated between these numbers."""
    if threads == 1 or not known:
        return 1.0
    cpus = [1, *(one.cpus for one in known)]
    mean = float(np.interp(threads, cpus, [1.0, *(one.mean_share.value for one in known)]))
    slowest = float(np.interp(largest or threads, cpus, [1.0, *(one.slowest_share.value for one in known)]))
    return 1 / (1 / mean + max(0.0, 1 / slowest - 1 / mean) / items)


def false_sharing_lines(machine: Machine, part: Part) -> float:
    """Lines that two threads write, because a seam lies within them."""
    line = machine.line_bytes
    return part.seams * (1 - math.gcd(line, part.grain) / line)


def crossing_lines(machine: Machine, part: Part) -> float:
    """Lines of shared panels, as waits for one: as many are on their way at once as of a shared level's."""
    shared = next((level for level in machine.levels if level.shared), None)
    if shared is None:
        return 0.0
    at_once = max(1.0, shared.latency_cycles.value * shared.read_bytes_per_cycle.value / machine.line_bytes)
    return part.crossing / machine.line_bytes / at_once


def cost_of_threads(cost: Cost, part: Part, machine: Machine, threads: int, largest: float) -> Cost:
    """The cost of a run from that of its largest part, which `largest` threads have."""
    cores = min(threads, machine.cores)
    times = part.share * ceil_div(threads, machine.cores) / busy_rate(machine, cores, part.items, min(cores, largest))
    written, counted = machine.core.written_line_cycles, cost.counted
    waits = (false_sharing_lines(machine, part) + crossing_lines(machine, part)) * written.value if written else 0.0
    beyond = max(0.0, waits - times * sum(counted[name] for name in cost.levels))
    forks = part.regions * fork_join_cycles(machine, threads) + beyond
    terms = cost.terms | ({"pack": cost.terms["pack"] * part.packing} if "pack" in cost.terms else {})
    cycles = (cost.cycles + terms.get("pack", 0.0) - cost.terms.get("pack", 0.0)) * times + forks

    def scaled(of: dict[str, float]) -> dict[str, float]:
        return {name: value * times for name, value in of.items()}

    levels = {name: scaled(of) for name, of in cost.levels.items()}
    places = {name: value for name, value in scaled(terms).items() if name in levels}
    terms = {name: value for name, value in scaled(terms).items() if name not in levels} | {"threads": forks} | places
    hidden = scaled(cost.hidden)
    bound = max(terms, key=lambda name: terms[name] - hidden.get(name, 0.0))
    return Cost(cycles, cycles / machine.clock_hz, bound, levels, terms, hidden)
