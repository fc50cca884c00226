# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions F(m x m, r x r) on a CPU (arXiv 1509.09308): tiles of m x m outputs from transformed patches and filters, as
(m + r - 1)^2 matrix products on the registry's micro-kernels, filters along the lanes (`native/algorithms/winograd.c`; cost:
`pysim.cachemodel.cpu.winograd`). The forms are those of `native/winograd.inc`.

F(2x2, 3x3) and F(3x3, 2x2) take 4/9 of the multiplications, F(4x4, 3x3) and F(3x3, 4x4) 1/4 and F(2x2, 5x5) 9/25. With a
stride s each channel is split into s^2 phases with ceil(kernel / s) taps each: 7x7 with stride 2 is F(3x3, 4x4), 11x11 with stride 4
F(4x4, 3x3), 3x3 with stride 2 F(3x3, 2x2), where phases of one tap are left out of the planes at infinity: 49 multiplications instead of
81. The slices of the kernel of a volume are channels, too: their products add up before the output transform.

Kernels of one row or one column are transformed along that axis alone, F(1 x m, 1 x r) or F(m x 1, r x 1): F(4, 3) takes half of the
multiplications. These are sequences, and in networks the depth taps of volumes (`Conv.folded`).

The interpolation points are 0, infinity and +-1 for patches of 4, and +-3/4, +-3/2 for 6. There are no patches of 8: the error of
F(6x6, 3x3) is ten times that of a direct sum.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 14 x 14 tiles of F(4x4), 14 panels of 14; its filters are 36 * 64 * 64 * 4 = 589,824 bytes.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.algorithms.interface import DIRECT_SUM, Array, Bound, Nests, Prepared
from pysim.cachemodel.costs import Costs, numbered
from pysim.cachemodel.cpu import nest_text, tilings
from pysim.cachemodel.cpu import winograd as model
from pysim.cachemodel.cpu.cost import assumed, cost_from
from pysim.cachemodel.cpu.direct_schedules import row_of
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.threads import Part, rows_of
from pysim.cachemodel.cpu.winograd_incore import Cases, Shape, channels_of, phase_share, phases_of, shape_of
from pysim.errors import PlanError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SUM_UNITS
from pysim.record.accuracy import Accuracy, ErrorScale
from pysim.record.contract import Contract
from pysim.record.cost import NoneLegal, Reason, Rejected
from pysim.record.description import Description, Section
from pysim.record.plan import Layout, MicroKernel, Plan, Request, blocks_of, on_cpu
from pysim.record.schedule import Schedule
from pysim.registry.cpu import Kernel, kernels, winograd_forms, winograd_transforms

NAME = "winograd"
COMPUTES = Conv
VOLUMES = True
MAX_KERNEL, MAX_TAPS = 16, 256  # of native/algorithms/winograd.c
TRANSFERS = 1.5  # transfer cycles of most best schedules over the lower bound of their m, at most
MAX_PANEL_TILES, MAX_PANEL_FILTERS = 16, 64  # PYSIM_WINOGRAD_PANEL, WIDEST


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    w, (block, out) = problem, blocks_of(layout)
    if layout == "nhwc":
        return Reason("shape", f"it takes NCHW or channel blocks, not {layout.upper()}")
    rows, columns = (w.kernel_h, w.stride_h), (w.kernel_w, w.stride_w)
    if (
        not (rows == columns or (1, 1) in (rows, columns))
        or (w.dilation_h, w.dilation_w) != (1, 1)
        or max(rows[0], columns[0]) > MAX_KERNEL
    ):
        square = f"square kernels of up to {MAX_KERNEL}x{MAX_KERNEL} with one stride and dilation 1"
        return Reason("shape", f"it takes {square}, and such of one row or column")
    if w.taps > MAX_TAPS:
        return Reason("shape", f"it takes kernels of up to {MAX_TAPS} taps")
    if w.is_volume and layout != "nchw":
        return Reason("shape", f"volumes have no {layout.upper()}")
    if not outputs_of(w):
        known = sorted({r for _, r in winograd_forms()})
        text = f"{w.kernel_h}x{w.kernel_w} with stride {_stride(w)} has {taps_of(w)}"
        return Reason("shape", f"it takes {', '.join(map(str, known[:-1]))} or {known[-1]} taps per phase and axis; {text}")
    if rows != columns and layout != "nchw":
        return Reason("shape", f"it takes kernels of one row or column in NCHW, not {layout.upper()}")
    if block > 1 and w.stride_h > 1:
        return Reason("shape", f"with a stride it takes NCHW input, not {layout.upper()}")
    if w.group_channels % block or w.group_filters % out:
        return Reason("size", f"its channels or filters are not multiples of {out}, the block of {layout}")
    if w.dtype == "bf16" and out == 1:
        return Reason("type", "of bf16 it takes channel blocks")
    if not any(dtype == _of_floats(w).dtype and machine.unit(target) for target, dtype in winograd_transforms()):
        return Reason("type", f"there are no transforms of {w.dtype} for {machine.name} (native/winograd.inc)")
    return None


def _of_floats(problem: Conv) -> Conv:
    """What is transformed and multiplied: blocks of bf16 as floats. Its costs are those of the floats, whose blocks are twice as large."""
    return msgspec.structs.replace(problem, dtype="f32") if problem.dtype == "bf16" else problem


def taps_of(problem: Conv) -> int:
    """r: taps of a phase along an axis that has taps."""
    return -(-max(problem.kernel_h, problem.kernel_w) // _stride(problem))


def _stride(problem: Conv) -> int:
    """Of the axes that have taps."""
    return max(problem.stride_h, problem.stride_w)


def outputs_of(problem: Conv) -> tuple[int, ...]:
    """m of every form that computes the problem."""
    return tuple(m for m, r in winograd_forms() if r == taps_of(problem))


def contract(problem: Conv, schedule: Schedule) -> Contract | None:
    """The transforms of F(2x2, 3x3) only add, subtract and halve, so they have no choice of rounding; those of other forms multiply."""
    is_3x3 = (problem.kernel_h, problem.kernel_w, problem.stride_h) == (3, 3, 1)
    kept = is_3x3 and (schedule.outputs, schedule.channels) == (2, problem.group_channels)
    return Contract("winograd 2x2 3x3", schedule.channels) if kept else None


class Candidates(NamedTuple):
    """Schedules as the model's table; `bounds`: lower bounds on the cycles of each kernel."""

    bounds: Array
    table: model.Candidates
    limit: Array | float = np.inf
    rejected: tuple[Rejected, ...] = ()


@lru_cache(maxsize=64)
def _cases(problem: Conv, on: Machine, micro_kernel: MicroKernel, layout: Layout, accuracy: Accuracy) -> tuple[Cases, Array]:
    """The cases (kernel, shape) of a problem, and `model.least_cycles` by m, kernel and set of channels."""
    rows = [kernel for kernel in tilings.rows(on, problem.dtype, micro_kernel, accuracy=accuracy).kernels if _suits(kernel, on, layout)]
    cases = tuple((kernel, shape_of(problem, kernel, m, layout)) for m in outputs_of(problem) for kernel in rows)
    bounds = model.least_cycles(problem, on, cases)
    return cases, bounds.reshape(-1, max(1, len(rows)), bounds.shape[1])


def _cases_of(request: Request) -> tuple[Cases, Array]:
    return _cases(_of_floats(request.conv), request.cpu, request.micro_kernel, request.layout, request.accuracy)


def least_cycles(request: Request, best: float) -> float:
    return float(_cases_of(request)[1].min(initial=np.inf)) if request.threads == 1 else 0.0


def candidates(request: Request, limit: Array | float = 0.0) -> Candidates | NoneLegal:
    problem, on = _of_floats(request.conv), request.cpu
    if request.schedule is not None:
        return _named(problem, on, request)
    cases, bounds = _cases_of(request)
    if not cases:
        return NoneLegal(())
    guess = 1 + TRANSFERS * max(0.0, 1 - on.core.overlap.value)
    within = guess * bounds.min(axis=(1, 2)) if request.most is None else np.minimum(guess * bounds.min(), request.most)
    kept = bounds <= np.maximum(within, limit)[..., None, None]
    if not request.any_error:
        kept |= kept.any(axis=2, keepdims=True)  # smaller sets of channels are more accurate
    beyond = np.where(kept, np.inf, bounds).min(axis=(1, 2))
    table = model.candidates(problem, on, request.state, cases, kept.reshape(len(cases), -1))
    return Candidates(bounds.min(axis=(0, 2)), table, beyond)


def _suits(kernel: Kernel, on: Machine, layout: Layout = "nchw") -> bool:
    """Whether a kernel stores its lanes, which hold filters here, without transposing, and its target has transforms. In channel blocks, a
    vector must be a block."""
    fits = kernel.form == "win" and blocks_of(layout)[1] == kernel.lane_windows
    if layout != "nchw" and (not fits or on.unit_of(kernel.target).planes_alone):
        return False
    sized = kernel.filters <= MAX_PANEL_TILES and kernel.windows <= MAX_PANEL_FILTERS
    return sized and not kernel.along_filters and (kernel.target, kernel.dtype) in winograd_transforms()


def _named(problem: Conv, on: Machine, request: Request) -> Candidates:
    """Only the schedule of the named plan."""
    s = request.schedule
    kernel = next((row for row in kernels() if s and row.name == s.kernel), None)
    if not isinstance(s, Schedule) or kernel is None or not on.unit(kernel.target) or kernel.dtype != problem.dtype:
        known = [row.name for row in tilings.rows(on, problem.dtype, None).kernels]
        named = s.kernel if s else ""
        raise PlanError(f"the named plan's kernel {quoted(named)} is no {problem.dtype} kernel of {on.name}; {choose(named, known)}")
    if (
        s.outputs not in outputs_of(problem)
        or not _suits(kernel, on, request.layout)
        or (s.windows, s.filters) != (kernel.windows, kernel.filters)
    ):
        raise PlanError(
            f"a {NAME} plan has outputs={', '.join(map(str, outputs_of(problem)))} here, and the windows and filters of its kernel"
        )
    shape = shape_of(problem, kernel, s.outputs, request.layout)
    if not 1 <= s.channels <= shape.channels or min(s.k2, s.k3) < 1 or s.stationary != "input_stationary":
        raise PlanError(f"a {NAME} plan is input stationary, with 1 to {shape.channels} channels here, and k2 and k3 of at least 1")
    return Candidates(np.zeros(1), _alone(request, kernel, s))


def _alone(request: Request, kernel: Kernel, s: Schedule) -> model.Candidates:
    """A table of one schedule."""
    problem, on = _of_floats(request.conv), request.cpu
    assert s.outputs
    shape = shape_of(problem, kernel, s.outputs, request.layout)
    column = [np.array([float(value)]) for value in (s.channels, min(s.k2, shape.panels), min(s.k3, shape.filter_panels))]
    return model.Candidates(problem, on, request.state, ((kernel, shape),), np.zeros(1, dtype=np.int64), *column)


def cost(machine: Machine, found: Sequence[Candidates]) -> list[Costs]:
    return [_costs(one) for one in found]


def _costs(of: Candidates) -> Costs:
    """The costs; each m is a kind."""
    table, passes = of.table, model.predict(of.table)
    kernels, kernel = numbered(row.name for row, _ in table.cases)
    kinds, kind = numbered(shape.form for _, shape in table.cases)
    cycles: Array = sum((one.cycles for one in passes), np.zeros(1))
    unread = () if phases_of(table.workload) > 1 else ("core.pack_call", "core.pack_cycles")

    def schedule(row: int) -> Schedule:
        kernel, shape = table.cases[table.case[row]]
        sizes = int(table.channels[row]), int(table.k2[row]), int(table.k3[row])
        return Schedule(kernel.name, "input_stationary", "tiles", kernel.windows, kernel.filters, *sizes, NAME, shape.outputs)

    return Costs(
        cycles=cycles,
        kernels=kernels,
        kernel=kernel[table.case],
        kinds=kinds,
        kind=kind[table.case],
        bounds=of.bounds,
        alike=(kind[table.case] << 32) + table.channels.astype(np.int64),
        schedule=schedule,
        cost=partial(cost_from, passes),
        assumed=lambda row: assumed(table.machine, table.cases[table.case[row]][0].target, latencies=True, unread=unread),
    )


def _row(schedule: Schedule) -> tuple[Kernel, int]:
    assert schedule.outputs
    return row_of(schedule), schedule.outputs


def prepare(problem: Conv, schedule: Schedule, layout: Layout) -> Prepared:
    """The transformed filters, and behind them the filters themselves: tiles with results that are not finite are computed from those."""
    row, problem = _row(schedule), _of_floats(problem)
    return Prepared("transformed filters", model.prepared_bytes(problem, *row) + model.plain_bytes(problem, *row))


def workspace_bytes(problem: Conv, schedule: Schedule, layout: Layout) -> int:
    return model.workspace_bytes(_of_floats(problem), *_row(schedule), schedule.k2, schedule.k3, layout)


def tolerance(problem: Conv, schedule: Schedule) -> Bound:
    """SAFETY times the largest measured errors, which grow with the root of the channels of a set and of the number of sets. If phases lack
    taps, results are smaller. Results of bf16 are rounded to 2^-9 of themselves, beside which a transform's error of floats is nothing."""
    if problem.dtype == "bf16":
        return DIRECT_SUM._replace(operands="transformed")
    channels, taps = channels_of(problem), taps_of(problem)
    sets, whole = -(-channels // schedule.channels), taps * _stride(problem) / max(problem.kernel_h, problem.kernel_w)
    assert schedule.outputs
    table = _LARGEST if problem.kernel_h == problem.kernel_w else _LARGEST_ALONG
    largest = table[schedule.outputs, taps] * (math.sqrt(schedule.channels) + math.sqrt(sets) + 4) * whole
    error = SAFETY * largest * SUM_UNITS[problem.dtype]
    return Bound(1.0, error, _MEASURED, operands="transformed", scale=scale_of(schedule.outputs, problem))


def scale_of(outputs: int, problem: Conv) -> ErrorScale:
    """With two outputs a side, the first and the last input of a patch reach one output each, and the others are in both windows. With
    more, or where phases lack taps, an input reaches results whose windows do not contain it."""
    return "window" if outputs == 2 and max(problem.kernel_h, problem.kernel_w) % _stride(problem) == 0 else "tile"


SAFETY = 2.0
# By (m, r): largest errors over u and the results' root mean square, over sqrt(channels) + sqrt(sets) + 4; 50,176 results of 16 to 1024
# channels
_LARGEST = {(3, 2): 4.0, (2, 3): 3.5, (4, 3): 14.0, (3, 4): 11.0, (2, 5): 8.5}
_LARGEST_ALONG = {(3, 2): 3.2, (2, 3): 2.7, (4, 3): 6.0, (3, 4): 5.5, (2, 5): 6.0}  # one axis
_MEASURED = "measured against float64 on operands in [-1, 1): lab/ablations/winograd_points.py"


def largest_part(problem: Conv, schedule: Schedule, threads: int) -> Part:
    """Threads divide blocks of panels of tiles, and their filters."""
    kernel, m = _row(schedule)
    of = shape_of(_of_floats(problem), kernel, m)
    blocks, parts = _division(of, schedule.k2, problem.groups, threads)
    panels, filter_panels = ceil_div(of.panels, blocks), ceil_div(of.filter_panels, parts)
    times, tiles = ceil_div(problem.groups * blocks * parts, threads), min(of.tiles, panels * of.panel)
    rows = ceil_div(tiles, of.row)
    own = msgspec.structs.replace(schedule, k2=panels, k3=min(schedule.k3, filter_panels))
    filters = min(of.filters, filter_panels * kernel.windows)
    groups = ceil_div(times, blocks * parts)  # each with panels and filters of its own
    of_group = ceil_div(times, groups)
    share = times / (groups * of_group)
    if rows * of.high < problem.out_h:
        return Part(rows_of(problem, of_group, rows * of.high, filters, groups), own, share * tiles / (rows * of.row), items=times)
    slices = max(1, round(rows * of.high / problem.out_h))  # an image that is no volume is one
    images = max(1, round(slices / problem.out_d))
    each = min(slices, problem.out_d)
    share *= tiles / (images * each * of.tiles / (problem.batch * problem.out_d))
    return Part(rows_of(problem, of_group * images, each * problem.out_h, filters, groups), own, share, items=times)


def _division(of: Shape, k2: int, groups: int, threads: int) -> tuple[int, int]:
    """(blocks of panels of tiles, parts of the filters of each): `divide` of native/algorithms/winograd.c."""
    fewest = ceil_div(of.panels, k2)
    if threads == 1:
        return fewest, 1

    def work(division: tuple[int, int]) -> int:
        blocks, parts = division
        return ceil_div(groups * blocks * parts, threads) * ceil_div(of.panels, blocks) * (2 * ceil_div(of.filter_panels, parts) + 1)

    known = range(fewest, min(of.panels, max(fewest, threads)) + 1), range(1, min(threads, of.filter_panels) + 1)
    return min(((blocks, parts) for parts in known[1] for blocks in known[0]), key=work)


def describe(plan: Plan) -> Description:
    (s, _), w = on_cpu(plan), _of_floats(plan.conv)
    kernel, m = _row(s)
    of = shape_of(w, kernel, m)
    counts = round(of.planes * phases_of(w) * phase_share(w, of)), w.kernel_h * w.kernel_w * of.high * of.wide
    form = f"{of.form[:-1]}, {of.taps_h}x{of.taps_w})" + (f" of {w.stride_h}x{w.stride_w} phases" if phases_of(w) > 1 else "")
    line = f"{form}: {counts[0]} multiplications per tile instead of {counts[1]}; {of.tiles} tiles in rows of {of.row}"
    transform = Section("transform", (line,))
    peak = nest_text.peak_of(plan) * counts[1] / counts[0]
    summary = "tiles of outputs from transformed input patches and filters, one matrix product per plane"
    inner = f"{kernel.name} on {kernel.windows} filters x {of.panel} tiles x {s.channels} channels"
    (nest,), names, _ = nests(plan)
    return nest_text.describe(plan, summary, nest, inner, names, (transform,), peak)


def nests(plan: Plan) -> Nests:
    s, on = on_cpu(plan)
    nest = model.described(_alone(Request(plan.conv, on, plan.layout, plan.state), _row(s)[0], s))
    return Nests((nest,), {"tiles": "panels of tiles"})
