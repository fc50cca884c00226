# SPDX-License-Identifier: Apache-2.0
"""A plan in words, from the description of its loops: the loops, each reuse with the cache that holds it, the heaviest transfer.

A plan's traffic is a graph (`edges`). Nodes are memory, cache levels and registers; an edge is the flow of one operand between two of
them, with `bytes` (both directions) and `cycles`: an operand's share, by bytes, of the cycles that the cost charges its supplier. Between
L1 and the registers, bytes are those that micro-kernels load and store, at the rate of L1. The slicing analysis does not separate
operands, so each level supplies L1 by one edge "lines" with lines x latency.

Worked number: 64 windows of 3x3 taps of 64 channels in FP32 are 147,456 bytes, 14 % of an L2 of 1 MiB.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from pysim.cachemodel.cpu.cost import table_of
from pysim.cachemodel.cpu.direct_schedules import row_of
from pysim.cachemodel.cpu.incore import products_per_cycle
from pysim.cachemodel.cpu.nest import Nest, ceil_div
from pysim.cachemodel.cpu.nest_loops import FILTER_TILES, WINDOWS, described
from pysim.cachemodel.cpu.reuse.counts import ACROSS, AFTER_FILL, BUFFER, WITHIN
from pysim.cachemodel.cpu.reuse.loops import Loop, LoopNest, Number, Operand, Reuse
from pysim.cachemodel.cpu.threads import nest_grid, shares_panels
from pysim.machine.cpu import Level, Machine, Unit
from pysim.record.cost import CsaCost
from pysim.record.description import Description, Section, bytes_text
from pysim.record.plan import Plan, on_cpu
from pysim.record.schedule import STATIONARY, Schedule
from pysim.registry.cpu import Kernel, cpu_kernel, kernels

Names = Mapping[str, str]  # a reader's words for the names of dimensions and operands in a description
REGISTERS = "registers"
Edge = tuple[str, str, str, float, float]  # supplier, receiver, operand, bytes, cycles
PANELS = "packed input", "packed filters"  # of windows and of filters, in the workspace of each thread


def describe(
    plan: Plan,
    summary: str,
    nest: LoopNest,
    inner: str,
    names: Names = MappingProxyType({}),
    more: Sequence[Section] = (),
    peak: float | None = None,
) -> Description:
    """The description of a plan from that of its loops, whose innermost body is `inner`; `peak` is its kernel's unless given."""
    sections = (
        *more,
        Section("loops", tuple(printed(nest, names, inner))),
        Section("reuse", tuple(reused(nest, on_cpu(plan)[1], names))),
        Section("exact maxima", _exact(plan)),
        Section("heaviest flow", _heaviest(plan, nest, names)),
    )
    return Description(summary, tuple(section for section in sections if section.lines), peak_of(plan) if peak is None else peak)


def peak_of(plan: Plan, lanes: int = 0, unit: Unit | None = None) -> float:
    """FLOP/s of one core whose unit is busy with the kernel's multiply-adds; `lanes`: of a multiply-add, if not the kernel's columns;
    `unit`: if not that of the kernel's target."""
    on, kernel = on_cpu(plan)[1], row_of(plan.schedule)
    rate = (unit or on.unit_of(kernel.target)).rate(plan.workload.dtype)
    return 2 * (lanes or kernel.lane_windows * kernel.lane_filters) * rate * on.clock_hz


def peak_of_taps(plan: Plan, met: float, unit: Unit | None = None) -> float:
    """FLOP/s, counted by the definition of a convolution, of one core whose unit is busy; `met` of the taps of all windows are multiplied,
    those that meet the image."""
    w = plan.conv
    return peak_of(plan, unit=unit) * w.windows * w.taps / met if met else 0.0


def describe_nest(nest: Nest, plan: Plan, summary: str, more: Sequence[Section] = ()) -> Description:
    """The description of a plan with a schedule of SConv's nest."""
    s, on = on_cpu(plan)
    loops, names = sliced(nest, on, s)
    taps = f" x {'x'.join(map(str, nest.filter_shape[2:]))}" if nest.taps > 1 else ""
    inner = f"{s.kernel} on {s.windows} windows x {s.filters} filters x {s.channels} channels{taps}"
    summary = f"{summary}, {s.stationary.replace('_', ' ')}"
    tiles = ceil_div(nest.windows, s.windows), ceil_div(nest.group_filters, s.filters)
    together = shares_panels(plan.workload, s, plan.threads)
    of = dict(zip((WINDOWS, FILTER_TILES), nest_grid(nest.repeats, *tiles, plan.threads, together), strict=True))
    threads = tuple(divided(loops, of, names, () if together else PANELS)) if plan.threads > 1 else ()
    sections = (*more, Section("threads", threads))
    return describe(plan, summary, loops, inner, names, sections, _peak(nest, on, s.kernel))


def divided(
    nest: LoopNest, parts: Mapping[str, int], names: Names = MappingProxyType({}), private: Sequence[str] = PANELS
) -> Iterator[str]:
    """For each dimension that threads divide, what each part has of its own and what the parts share. Operands along the dimension are
    divided; `private`: each thread has its own."""
    for dimension, count in parts.items():
        shown = ((dimension in of.extents, names.get(of.name, of.name)) for row, of in enumerate(nest.operands) if _shown(nest, row))
        operands = [(divided or name in private, name) for divided, name in shown]
        own, shared = (", ".join(dict.fromkeys(name for alone, name in operands if alone == kind)) for kind in (True, False))
        if count > 1:
            yield f"{count} parts of {names.get(dimension, dimension)}: each has its own {own}; they share {shared or 'nothing'}"


def sliced(nest: Nest, on: Machine, s: Schedule) -> tuple[LoopNest, Names]:
    """The loops of a schedule of SConv's nest, and the names that readers know them by."""
    packs = {} if nest.filters_packed else {"filters": "filters to pack"}
    names = {"input": "input to pack", "input in place": "input", "packed tile": PANELS[0], "prepared input": PANELS[0], **packs}
    sets = {f"sets of {name}": "sets" for name in ("channels", WINDOWS, FILTER_TILES)}
    return described(table_of(nest, on, s, _row(on, s)), s.stationary == STATIONARY[0]), {**names, **sets}


def _row(on: Machine, s: Schedule) -> Kernel:
    """A schedule's kernel. The slicing analysis may have a shape without a row: then any kernel that the machine runs, with that shape."""
    any_row = next(row for row in kernels() if on.unit(row.target))
    return cpu_kernel(s.kernel) or msgspec.structs.replace(any_row, windows=s.windows, filters=s.filters)


def printed(nest: LoopNest, names: Names = MappingProxyType({}), inner: str = "") -> Iterator[str]:
    """The nest in words, outermost loop first, with the operands of each body before the loops in it and after them."""
    touched = [
        (of, one.after_loops, names.get(one.name, one.name) + " (written)" * one.written)
        for row, (one, of) in enumerate(zip(nest.operands, nest.accesses, strict=True))
        if _shown(nest, row)
    ]
    for depth, loop in enumerate(nest.loops):
        sets = f"of {_number(loop.tiles):,.0f} " if _number(loop.tiles) > 1 else ""
        here = ", ".join(name for of, after, name in touched if of.inside == depth and not after)
        text = f"for each of {_number(loop.trips):,.0f} {_words(loop, names, sets)}"
        yield "  " * depth + text + (f": {here}" if here else "")
    if inner:
        yield "  " * len(nest.loops) + inner
    for depth in range(len(nest.loops), 0, -1):
        if here := ", ".join(name for of, after, name in touched if of.inside == depth - 1 and after):
            yield "  " * depth + f"then {here}"


def _shown(nest: LoopNest, row: int) -> bool:
    """Whether an operand has a name and is touched at all."""
    return bool(nest.operands[row].name and _number(nest.footprint(-1, row)))


def _words(loop: Loop, names: Names, size: str = "of ") -> str:
    """A loop in words: blocks of (3) panels of tiles; panels of tiles."""
    if size and _number(loop.tiles) > 1:
        return f"{names.get(loop.name, loop.name)} {size}{names.get(loop.dimension, loop.dimension)}"
    return loop.name


def reused(nest: LoopNest, on: Machine, names: Names = MappingProxyType({})) -> Iterator[str]:
    """The reuse distance of each operand, and the cache that holds as much."""
    for one in nest.reuses():
        operand = nest.operands[one.row]
        distance = sum(_number(share) * _number(part) for share, part in zip(one.shares, one.distances, strict=True))
        if operand.name and _number(one.times) >= 0.5 and _number(one.size) and distance > 0:
            text = f"{names.get(operand.name, operand.name)} {_when(one, operand, _words(nest.loops[one.loop], names))}"
            yield f"{text:<72}{bytes_text(distance):>10}  {_against(distance, on.levels)}"


def _when(one: Reuse, operand: Operand, loop: str) -> str:
    """Which two uses of an operand a distance lies between."""
    following = f"in the next iteration of {loop}"
    if one.kind in (ACROSS, WITHIN):
        return f"shared by neighbours, {one.kind} {loop}"
    if one.kind == BUFFER:
        return f"overwritten {following}" if one.first else f"{'written' if operand.written else 'read'} later in {loop}"
    if one.kind == AFTER_FILL:
        return f"first read {following}"
    return f"reused {following}" if one.loop >= 0 else "reused in the next run"


def _number(value: Number) -> float:
    return float(np.ravel(value)[0])


def _against(size: float, levels: tuple[Level, ...]) -> str:
    holder = next((level for level in levels if size <= level.size_bytes), None)
    return f"{size / holder.size_bytes:.0%} of {holder.name} ({bytes_text(holder.size_bytes)})" if holder else "from memory"


def _peak(nest: Nest, on: Machine, name: str) -> float:
    """FLOP/s, counted by the definition, of one core whose unit is busy: kernel rows in padding are skipped."""
    kernel = cpu_kernel(name)
    unit = on.unit(kernel.target) if kernel else None
    if kernel is None or unit is None:
        return 0.0
    live = sum(nest.live_rows(kernel.windows)) / (ceil_div(nest.windows, kernel.windows) * nest.kernel_rows)
    return 2 * products_per_cycle(kernel, unit, nest.result_bytes // nest.element_bytes) * on.clock_hz / live if live else 0.0


def _exact(plan: Plan) -> tuple[str, ...]:
    """The exact maxima of the slicing analysis, beside halving."""
    if not isinstance(plan.cost, CsaCost):  # the alternatives of another plan would be predicted to no end
        return ()
    found = [(item.schedule.kind, item.cost.exact) for item in plan.considered if isinstance(item.cost, CsaCost) and item.cost.exact]
    return tuple(f"{kind}: channels {of['channels']}, k2 {of['k2']}, k3 {of['k3']}, cost {of['cost']:,}" for kind, of in found)


def _heaviest(plan: Plan, nest: LoopNest, names: Names) -> tuple[str, ...]:
    ranked = sorted(edges(plan, nest), key=lambda edge: edge[4], reverse=True)
    return tuple(
        f"{names.get(operand, operand)} from {source} to {target}, {bytes_text(size)}, {cycles:,.0f} cycles"
        for source, target, operand, size, cycles in ranked[:1]
    )


def edges(plan: Plan, nest: LoopNest | None) -> Iterator[Edge]:
    """Every flow of at least one byte, outermost level first."""
    if isinstance(plan.cost, CsaCost):
        yield from _csa_edges(plan, plan.cost)
        return
    levels = on_cpu(plan)[1].levels
    names = [level.name for level in levels]
    for supplier, receiver in zip(["memory", *names[:0:-1]], names[::-1], strict=True):
        level = plan.cost.levels[supplier]
        for name, size in level.items():
            if name.endswith("_bytes") and size:
                yield supplier, receiver, name.removesuffix("_bytes"), size, level["cycles"] * size / level["bytes"]
    if nest is None:
        return
    for row, one in enumerate(nest.operands):
        if one.name and nest.accesses[row].inside == len(nest.loops) - 1 and (size := float(nest.accessed(row)[0])):
            rate = levels[0].write_bytes_per_cycle if one.written else levels[0].read_bytes_per_cycle
            yield names[0], REGISTERS, one.name, size, size / rate.value


def _csa_edges(plan: Plan, cost: CsaCost) -> Iterator[Edge]:
    model = on_cpu(plan)[1].csa
    if model is None:
        return
    for supplier, lines, latency in (
        ("memory", cost.cold + cost.extra, model.memory_latency_cycles),
        ("L3", cost.l3, model.l3_latency_cycles),
        ("L2", cost.l2, model.l2_latency_cycles),
    ):
        if lines:
            yield supplier, "L1", "lines", float(lines * model.line_bytes), lines * latency.value
