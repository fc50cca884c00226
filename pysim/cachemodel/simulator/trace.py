# SPDX-License-Identifier: Apache-2.0
"""What a schedule touches, access by access, and what exact caches make of it.

The macro-kernel itself makes the trace: its loops run with stand-ins that note addresses in place of packing and multiplying
(`native/trace.c`). So the tiles, the kernel rows that are skipped and the places of the packed panels are those of a run, and
no kernel has to run on this CPU. One access is what one vector instruction moves of one row, or one element where the kernel
reads elements.

Tags name buffers and phases (hierarchy.OPERANDS, hierarchy.PHASES): `input`, `filter` and `output` are the operands of the call (a
convolution's filters are panels, packed before it), `packed_input` and `packed_filter` the workspace, `columns` the matrix of
im2col (`tools/im2col_baseline.py`). Packing is phase `pack`, the sums `compute`, loads and stores of the output `store`.

Every buffer starts on a page of its own, one after the other, so a trace is the same on every machine.

Worked number: 1x1, 2 channels, 1 filter, a row of 8 windows in place under the portable 8x4 tile: 2 k steps read 8 windows and
4 filter values each, then 8 outputs are written: 32 accesses of 4 bytes.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from pysim.cachemodel.cpu.listed import row_of
from pysim.cachemodel.cpu.nest import ceil_div, nest_of
from pysim.cachemodel.simulator.hierarchy import Hierarchy, Result
from pysim.errors import PlanError
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.schedule import Schedule

PAGE = 4096  # bytes; every buffer starts on a page
MOST_ACCESSES = 10**11  # that are simulated: some five minutes
SHOWN_ACCESSES = 1.5e8  # of a run that somebody waits for: two runs take some seconds
LEAST_SIDE = 256  # rows or columns of C that a part of a product keeps


class Bases(NamedTuple):
    """Byte addresses of the first element of each buffer; B of a product is `input`, or `columns` where `input` is 0."""

    input: int
    filters: int
    output: int
    workspace: int
    columns: int = 0


def simulate(workload: Workload, schedule: Schedule, hierarchy: Hierarchy, *, warm: bool = False, flush: bool = False) -> Result:
    """Counts of one run of a schedule on one thread, filters packed beforehand (convolution), output overwritten.

    Cold by default: the caches start empty. `warm` runs the trace once before counting, as in a loop over the same data. `flush`
    counts the write-back of what is dirty at the end. Raises NativeError for a schedule that does not fit the workload, PlanError for
    more than MOST_ACCESSES.
    """
    _check_length(workload, schedule)
    return simulate_runs([run_of(workload, schedule, bases(workload, schedule))], hierarchy, warm=warm, flush=flush)


def bases(workload: Workload, schedule: Schedule) -> Bases:
    """Where the buffers of one run lie: from the first page on, in the order of the fields, none sharing a page."""
    from pysim.runtime import cpu as runtime

    ffi, lib = runtime.library()
    size = ffi.new("int64_t *")
    element, result = workload.element_bytes, workload.result_bytes
    told = runtime.problem_struct(workload), runtime.schedule_struct(schedule, workload)
    runtime.check(lib.pysim_prepared_bytes(*told, size))
    if isinstance(workload, Gemm):
        sizes = [size[0] or workload.k * workload.n * element, workload.m * workload.k * element, workload.output_elements * result]
    else:
        panels = size[0] - lib.PYSIM_PACKED_MARK_BYTES  # all that the loops read of packed filters
        sizes = [workload.input_elements * element, panels, workload.output_elements * result]
    runtime.check(lib.pysim_workspace_bytes(*told, 1, size))
    return Bases(*pages([*sizes, size[0]])[:4])


def part_of(workload: Workload, schedule: Schedule, most: float) -> Workload:
    """As much of a workload as makes at most some `most` accesses under this schedule: fewer images of a batch; of a product, which
    has none, half of its rows or columns of C, whichever are more, again and again. Sums keep their length. The workload where nothing is
    left to cut."""
    of = workload
    while _estimated(of, schedule) > most:
        if isinstance(of, Conv) and of.batch > 1:
            of = msgspec.structs.replace(of, batch=of.batch // 2)
        elif isinstance(of, Gemm) and max(of.m, of.n) > LEAST_SIDE:
            of = msgspec.structs.replace(of, **({"m": of.m // 2} if of.m >= of.n else {"n": of.n // 2}))
        else:
            break
    return of


def _estimated(workload: Workload, schedule: Schedule) -> float:
    """Accesses of whole tiles' k steps: vectors of the operand along the lanes, elements of the other."""
    row = row_of(schedule)
    each = ceil_div(schedule.windows, row.lane_windows) + ceil_div(schedule.filters, row.lane_filters)
    return float(each * _steps(workload, schedule))


def _steps(workload: Workload, schedule: Schedule) -> int:
    """k steps of all tiles."""
    nest = nest_of(workload)
    tiles = nest.repeats * ceil_div(nest.windows, schedule.windows) * ceil_div(nest.group_filters, schedule.filters)
    return tiles * nest.group_channels * nest.taps


def _check_length(workload: Workload, schedule: Schedule) -> None:
    """Refuses what would take too long: a k step of a tile reads a window and a filter at least."""
    least = 2 * _steps(workload, schedule)
    if least > MOST_ACCESSES:
        raise PlanError(f"{workload.text} makes at least {least:.1e} accesses; exact caches are simulated for up to {MOST_ACCESSES:.0e}")


def pages(sizes: list[int]) -> list[int]:
    """Where buffers of these sizes begin, one after the other from the first page on."""
    return list(accumulate((-(-size // PAGE) * PAGE for size in sizes), initial=PAGE))


class Run(NamedTuple):
    """One native run: the function that simulates it, and its arguments before the caches' state."""

    simulate: Any
    arguments: tuple[Any, ...]


def run_of(workload: Workload, schedule: Schedule, at: Bases) -> Run:
    """Of one schedule, buffers where they are said to be."""
    from pysim.runtime import cpu as runtime

    ffi, lib = runtime.library()
    told = runtime.problem_struct(workload), runtime.schedule_struct(schedule, workload), ffi.new("pysim_trace_bases *", at)
    return Run(lib.pysim_simulate, told)


def simulate_runs(runs: Sequence[Run], hierarchy: Hierarchy, *, warm: bool = False, flush: bool = False) -> Result:
    """Counts of runs one after another, as `simulate` has them."""
    from pysim.runtime import cpu as runtime

    ffi, _ = runtime.library()

    def feed(state: Any) -> int:
        count = ffi.new("int64_t *")
        for run in runs:
            runtime.check(run.simulate(*run.arguments, state, count))
        return int(count[0])

    if warm:
        hierarchy.drive(feed)
    return hierarchy.drive(feed, flush=flush, warm=warm)
