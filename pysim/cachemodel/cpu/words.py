# SPDX-License-Identifier: Apache-2.0
"""A nest's plan in words: its loops, its tiles against each cache, its heaviest flow."""

from collections.abc import Iterator

from pysim.cachemodel.cpu.graph import critical_edge, traffic
from pysim.cachemodel.cpu.incore import products_per_cycle
from pysim.cachemodel.cpu.nest import Nest, ceil_div
from pysim.machine.cpu import Level, Machine
from pysim.record.cost import CsaCost
from pysim.record.description import Description, Section, bytes_text
from pysim.record.plan import Plan
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels


def describe(nest: Nest, plan: Plan, summary: str) -> Description:
    """The description of a plan whose schedule is that of a nest."""
    s, on = plan.schedule, plan.on
    assert isinstance(s, Schedule) and isinstance(on, Machine)
    sections = [Section("loops", tuple(_loops(nest, s))), Section("reuse", tuple(_reuse(nest, s, on)))]
    sections += [
        Section(title, lines) for title, lines in (("exact maxima", _exact(plan)), ("heaviest flow", _heaviest(nest, plan))) if lines
    ]
    return Description(f"{summary}, {s.stationary.replace('_', ' ')}", tuple(sections), _peak(nest, on, s.kernel))


def _peak(nest: Nest, on: Machine, name: str) -> float:
    """FLOP/s of the definition at which one core's unit is busy: kernel rows that are all padding are left out."""
    kernel = next((row for row in kernels() if row.name == name), None)
    unit = on.unit(kernel.target) if kernel else None
    if kernel is None or unit is None:
        return 0.0
    live = sum(nest.live_rows(kernel.windows)) / (ceil_div(nest.windows, kernel.windows) * nest.kernel_h)
    return 2 * products_per_cycle(nest, kernel, unit) * on.clock_hz / live if live else 0.0


def tile_sizes(nest: Nest, s: Schedule) -> tuple[int, int, int]:
    """Bytes of one window tile, one filter tile and one output tile (equation 1 of `pysim.cachemodel.cpu.csa`)."""
    depth = s.channels * nest.kernel_h * nest.kernel_w * nest.element_bytes
    return s.windows * depth, s.filters * depth, s.windows * s.filters * nest.out_bytes


def _loops(nest: Nest, s: Schedule) -> Iterator[str]:
    windows, filters = ceil_div(nest.windows, s.windows), ceil_div(nest.filters, s.filters)
    keeps_input = s.stationary == "input_stationary"
    kept, streamed = ("window", "filter") if keeps_input else ("filter", "window")
    n_kept, n_streamed = (windows, filters) if keeps_input else (filters, windows)
    k2, k3 = min(s.k2, n_streamed), min(s.k3, n_kept)
    taps = f" x {nest.kernel_h}x{nest.kernel_w}" if nest.kernel_h * nest.kernel_w > 1 else ""
    one_pass = keeps_input and k2 == n_streamed
    if s.pack == "none":
        pack = ""
    elif keeps_input:
        pack = ": pack it" if one_pass else ": pack it at the first of the filter sets"
    else:
        pack = ": pack them"
    own_filters = "" if nest.filters_packed else ": pack them"
    repeat = f"for each of {nest.batch} images x {nest.groups} groups" if nest.repeats > 1 else ""
    sets = [
        repeat,
        f"for {_sets(nest.channels, s.channels)} channels",
        f"for {_sets(n_kept, k3)} {kept} tiles" + ("" if keeps_input else own_filters),
        f"for {_sets(n_streamed, k2)} {streamed} tiles" + (own_filters if keeps_input else pack),
        f"for each {kept} tile" + (pack if keeps_input else ""),
        f"for each {streamed} tile: {s.kernel} on {s.windows} windows x {s.filters} filters x {s.channels} channels{taps}",
    ]
    for depth, text in enumerate(line for line in sets if line):
        yield "  " * depth + text


def _sets(total: int, size: int) -> str:
    count = ceil_div(total, size)
    return f"each of {count} sets of {size}" if count > 1 else f"the one set of {size}"


def _reuse(nest: Nest, s: Schedule, on: Machine) -> Iterator[str]:
    """What must stay in each cache for the next use to hit it: equations 2, 4 and 5, against the caches of the machine."""
    levels = on.levels
    window, filters, out = tile_sizes(nest, s)
    tiles = ceil_div(nest.windows, s.windows), ceil_div(nest.filters, s.filters)
    keeps_input = s.stationary == "input_stationary"
    kept, streamed = (window, filters) if keeps_input else (filters, window)
    names = ("window", "filter") if keeps_input else ("filter", "window")
    n_kept, n_streamed = tiles if keeps_input else tiles[::-1]
    k2, k3 = min(s.k2, n_streamed), min(s.k3, n_kept)
    yield f"{'window tile':<44}{bytes_text(window):>11}"
    yield f"{'filter tile':<44}{bytes_text(filters):>11}"
    yield f"{'output tile':<44}{bytes_text(out):>11}"
    rows = [
        ("one call", kept + streamed + out, 0),
        (f"until a {names[1]} tile is used again", kept + k2 * (streamed + out), 1),
        (f"until a {names[0]} tile is used again", k3 * kept + k2 * streamed + k2 * k3 * out, 2),
    ]
    for what, size, level in rows[: 2 if n_streamed <= k2 else 3]:
        yield f"{what:<44}{bytes_text(size):>11}  {_against(size, levels, level)}"


def _against(size: int, levels: tuple[Level, ...], index: int) -> str:
    """A size against the cache that should hold it, and the one that does."""
    level = levels[min(index, len(levels) - 1)]
    text = f"{size / level.size_bytes:.0%} of {level.name} ({bytes_text(level.size_bytes)})"
    if size <= level.size_bytes:
        return text
    holder = next((other.name for other in levels if size <= other.size_bytes), "memory")
    return f"{text}, so {holder} supplies it"


def _exact(plan: Plan) -> tuple[str, ...]:
    """What the slicing analysis makes of exact maxima, beside halving."""
    found = [(item.schedule.kind, item.cost.exact) for item in plan.considered if isinstance(item.cost, CsaCost) and item.cost.exact]
    return tuple(f"{kind}: channels {of['channels']}, k2 {of['k2']}, k3 {of['k3']}, cost {of['cost']:,}" for kind, of in found)


def _heaviest(nest: Nest, plan: Plan) -> tuple[str, ...]:
    edge = critical_edge(traffic(plan, nest))
    if edge is None:
        return ()
    source, target, operand, size, cycles = edge
    return (f"{operand} from {source} to {target}, {bytes_text(size)}, {cycles:,.0f} cycles",)
