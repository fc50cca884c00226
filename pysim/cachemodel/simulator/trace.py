# SPDX-License-Identifier: Apache-2.0
"""The memory accesses of a schedule, and their exact simulation.

The macro-kernel itself makes the trace: its loops run with stand-ins for packing and multiplying that record addresses
(`native/simulator/trace.c`). So tiles, skipped kernel rows and packed panels are those of a real run, and no kernel has to run on this
CPU. One access is what one vector instruction moves of one row, or one element where the kernel reads elements.

Tags name buffers and phases (hierarchy.OPERANDS, hierarchy.PHASES). `input`, `filter` and `output` are the operands of the call (a
convolution's filters are panels, packed before it), `packed_input` and `packed_filter` the workspace, `columns` the matrix of
im2col (`im2col_baseline.py`). Phases: packing is `pack`, the micro-kernel's loads `compute`, loads and stores of the output `store`.

Every buffer starts on a page of its own, one after the other, so a trace is the same on every machine.

Worked number: 1x1, 2 channels, 1 filter, a row of 8 windows in place, the portable 8x4 tile: 2 k-iterations read 8 windows and 4 filter
values each, then 8 outputs are written: 32 accesses of 4 bytes.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from pysim.cachemodel.cpu.direct_schedules import row_of
from pysim.cachemodel.cpu.nest import ceil_div, nest_of
from pysim.cachemodel.simulator.hierarchy import Hierarchy, Result
from pysim.errors import PlanError
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.schedule import Schedule

PAGE = 4096  # bytes; every buffer starts on a page
MAX_ACCESSES = 10**11  # some five minutes
INTERACTIVE_ACCESSES = 1.5e8  # of a run that a user waits for: two runs take some seconds
MIN_SIDE = 256  # rows or columns of C in a part of a product


class Bases(NamedTuple):
    """Byte address of the first element of each buffer. B of a product is `input`, or `columns` if `input` is 0."""

    input: int
    filters: int
    output: int
    workspace: int
    columns: int = 0


def simulate(workload: Workload, schedule: Schedule, hierarchy: Hierarchy, *, warm: bool = False, flush: bool = False) -> Result:
    """Counts of one run of a schedule on one thread, filters packed beforehand (convolution), output overwritten.

    By default the caches start empty. `warm` runs the trace once before counting, as in a loop over the same data. `flush` counts the
    write-backs of dirty lines at the end. Raises NativeError for a schedule that does not fit the workload, PlanError for more than
    MAX_ACCESSES.
    """
    check_length(workload, 2 * _k_iterations(workload, schedule))  # a k-iteration of a tile reads at least a window and a filter
    return simulate_runs([run_of(workload, schedule, bases(workload, schedule))], hierarchy, warm=warm, flush=flush)


def bases(workload: Workload, schedule: Schedule) -> Bases:
    """Where the buffers of one run lie: in the order of the fields, from the first page on, none sharing a page."""
    from pysim.runtime import cpu as runtime

    ffi, lib = runtime.library()
    size = ffi.new("int64_t *")
    element, result = workload.element_bytes, workload.result_bytes
    arguments = runtime.problem_struct(workload), runtime.schedule_struct(schedule, workload)
    runtime.check(lib.pysim_prepared_bytes(*arguments, size))
    if isinstance(workload, Gemm):
        sizes = [size[0] or workload.k * workload.n * element, workload.m * workload.k * element, workload.output_elements * result]
    else:
        panels = size[0] - lib.PYSIM_PACKED_MARK_BYTES  # all that the loops read of packed filters
        sizes = [workload.input_elements * element, panels, workload.output_elements * result]
    runtime.check(lib.pysim_workspace_bytes(*arguments, 1, size))
    return Bases(*pages([*sizes, size[0]])[:4])


def part_of(workload: Workload, most: float, accesses: Callable[[Workload], float]) -> Workload:
    """A part of a workload with at most `most` accesses: fewer images of a batch; of a product, repeatedly half of the
    rows or columns of C, whichever are more. Sums keep their length. Returns the smallest part if even that has more."""
    of = workload
    while accesses(of) > most:
        if isinstance(of, Conv) and of.batch > 1:
            of = msgspec.structs.replace(of, batch=of.batch // 2)
        elif isinstance(of, Gemm) and max(of.m, of.n) > MIN_SIDE:
            of = msgspec.structs.replace(of, **({"m": of.m // 2} if of.m >= of.n else {"n": of.n // 2}))
        else:
            break
    return of


def estimated(workload: Workload, schedule: Schedule) -> float:
    """Accesses of the k-iterations of whole tiles: vectors of the operand along the lanes, elements of the other."""
    row = row_of(schedule)
    each = ceil_div(schedule.windows, row.lane_windows) + ceil_div(schedule.filters, row.lane_filters)
    return float(each * _k_iterations(workload, schedule))


def _k_iterations(workload: Workload, schedule: Schedule) -> int:
    """k-iterations of all tiles."""
    nest = nest_of(workload)
    tiles = nest.repeats * ceil_div(nest.windows, schedule.windows) * ceil_div(nest.group_filters, schedule.filters)
    return tiles * nest.group_channels * nest.taps


def check_length(workload: Workload, least: float) -> None:
    """Raises PlanError for at least so many accesses if simulating them would take too long."""
    if least > MAX_ACCESSES:
        raise PlanError(f"{workload.text} makes at least {least:.1e} accesses; exact caches are simulated for up to {MAX_ACCESSES:.0e}")


def pages(sizes: list[int]) -> list[int]:
    """Where buffers of these sizes start: one after the other, each on a page, from the first page on."""
    return list(accumulate((-(-size // PAGE) * PAGE for size in sizes), initial=PAGE))


class Run(NamedTuple):
    """One native run: the function that simulates it, and its arguments before the caches' state."""

    simulate: Any
    arguments: tuple[Any, ...]


def run_of(workload: Workload, schedule: Schedule, at: Bases) -> Run:
    """The run of one schedule with buffers at given addresses."""
    from pysim.runtime import cpu as runtime

    ffi, lib = runtime.library()
    arguments = runtime.problem_struct(workload), runtime.schedule_struct(schedule, workload), ffi.new("pysim_trace_bases *", at)
    return Run(lib.pysim_simulate, arguments)


def simulate_runs(runs: Sequence[Run], hierarchy: Hierarchy, *, warm: bool = False, flush: bool = False) -> Result:
    """Counts of runs one after another, like `simulate`."""
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
