# SPDX-License-Identifier: Apache-2.0
"""A plan in words: its loop nest, its tiles against each cache, what each schedule costs, and why the loser lost."""

from collections.abc import Iterator

from pysim.cachemodel.cpu.nest import Nest, ceil_div, nest_of
from pysim.explain.graph import critical_edge, traffic
from pysim.machine.load import Level
from pysim.planner.plan import Considered, Plan, on_cpu
from pysim.record.cost import Cost, CsaCost
from pysim.record.schedule import Schedule

_TOP = 6  # rejections that are printed
_CSA_TERMS = ("cold", "extra", "l3", "l2", "cost")


def explain(plan: Plan) -> str:
    """The explanation as text, lines of at most about 120 characters."""
    nest = nest_of(plan.workload)
    sections = (
        _head(plan),
        ["loops", *_loops(nest, on_cpu(plan)[0])],
        ["reuse", *_reuse(nest, plan)],
        ["schedules", *_schedules(plan)],
        _critical(plan),
        ["rejected", *_rejections(plan)],
        ["assumed numbers", *(f"  {path}" for path in plan.assumed)] if plan.assumed else [],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _head(plan: Plan) -> list[str]:
    s, _ = on_cpu(plan)
    lines = [f"{plan.problem} on {plan.machine}: {plan.algorithm}, {s.stationary}, kernel {plan.kernel}, pack {s.pack}"]
    if isinstance(plan.cost, Cost):
        rate = plan.workload.flops / plan.cost.seconds / 1e9
        lines.append(
            f"predicted {seconds_text(plan.cost.seconds)} = {plan.cost.cycles:,.0f} cycles, {rate:.1f} GFLOP/s, bound by "
            f"{plan.cost.bound_by}; workspace {bytes_text(plan.workspace_bytes)}"
        )
    else:
        workspace = bytes_text(plan.workspace_bytes)
        lines.append(f"slicing analysis cost {plan.cost.cost:,} cycles (latency of every line); workspace {workspace}")
    return lines


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
        yield "  " * (depth + 1) + text


def _sets(total: int, size: int) -> str:
    count = ceil_div(total, size)
    return f"each of {count} sets of {size}" if count > 1 else f"the one set of {size}"


def _reuse(nest: Nest, plan: Plan) -> Iterator[str]:
    """What must stay in each cache for the next use to hit it: equations 2, 4 and 5, against the caches of the machine."""
    s, on = on_cpu(plan)
    levels = on.levels
    window, filters, out = tile_sizes(nest, s)
    tiles = ceil_div(nest.windows, s.windows), ceil_div(nest.filters, s.filters)
    keeps_input = s.stationary == "input_stationary"
    kept, streamed = (window, filters) if keeps_input else (filters, window)
    names = ("window", "filter") if keeps_input else ("filter", "window")
    n_kept, n_streamed = tiles if keeps_input else tiles[::-1]
    k2, k3 = min(s.k2, n_streamed), min(s.k3, n_kept)
    yield f"  {'window tile':<44}{bytes_text(window):>11}"
    yield f"  {'filter tile':<44}{bytes_text(filters):>11}"
    yield f"  {'output tile':<44}{bytes_text(out):>11}"
    rows = [
        ("one call", kept + streamed + out, 0),
        (f"until a {names[1]} tile is used again", kept + k2 * (streamed + out), 1),
        (f"until a {names[0]} tile is used again", k3 * kept + k2 * streamed + k2 * k3 * out, 2),
    ]
    for what, size, level in rows[: 2 if n_streamed <= k2 else 3]:
        yield f"  {what:<44}{bytes_text(size):>11}  {_against(size, levels, level)}"


def _against(size: int, levels: tuple[Level, ...], index: int) -> str:
    """A size against the cache that should hold it, and the one that does."""
    level = levels[min(index, len(levels) - 1)]
    text = f"{size / level.size_bytes:.0%} of {level.name} ({bytes_text(level.size_bytes)})"
    if size <= level.size_bytes:
        return text
    holder = next((other.name for other in levels if size <= other.size_bytes), "memory")
    return f"{text}, so {holder} supplies it"


def _schedules(plan: Plan) -> Iterator[str]:
    """Both schedules' tiles and costs by term, then the terms that decided."""
    chosen = next(item for item in plan.considered if item.schedule.kind == plan.schedule.kind)
    other = next(item for item in plan.considered if item is not chosen)
    for item in (chosen, other):
        s = item.schedule
        assert isinstance(s, Schedule)
        yield f"  {s.stationary:<18}{s.kernel}, channels {s.channels}, k2 {s.k2}, k3 {s.k3}, pack {s.pack}"
    ours, theirs = _terms(chosen), _terms(other)
    unit = "lines, cost" if isinstance(plan.cost, CsaCost) else "cycles"
    yield f"  {unit:<18}{chosen.schedule.kind:>18}{other.schedule.kind:>20}{'difference':>18}"
    for name, value in ours.items():
        yield f"  {name:<18}{value:>18,.0f}{theirs[name]:>20,.0f}{theirs[name] - value:>+18,.0f}"
    yield "  " + _verdict(chosen, other)
    for item in (chosen, other):
        if item.exact:
            s, cost = item.exact
            yield f"  with exact maxima  {s.stationary}: channels {s.channels}, k2 {s.k2}, k3 {s.k3}, cost {cost.cost:,}"


def _terms(item: Considered) -> dict[str, float]:
    if isinstance(item.cost, CsaCost):
        return {name: getattr(item.cost, name) for name in _CSA_TERMS}
    return {**item.cost.terms, "all": item.cost.cycles}


def _total(item: Considered) -> float:
    return item.cost.cost if isinstance(item.cost, CsaCost) else item.cost.cycles


def _verdict(chosen: Considered, other: Considered) -> str:
    """Why the loser lost: the terms in which it is dearer, and those in which it is cheaper but not enough."""
    loser, total = other.schedule.kind, _total(chosen)
    worse = _total(other) / total - 1
    if _total(other) == total:
        return f"{loser} costs the same; equal cost goes to {chosen.schedule.kind}"
    last = "cost" if isinstance(chosen.cost, CsaCost) else "all"
    ours, theirs = _terms(chosen), _terms(other)
    gaps = {name: theirs[name] - ours[name] for name in ours if name != last}
    dearer = sorted((name for name in gaps if gaps[name] > 0), key=lambda name: -gaps[name])
    cheaper = sorted((name for name in gaps if gaps[name] < 0), key=lambda name: gaps[name])
    unit = " lines" if last == "cost" else ""
    parts = [f"more {', '.join(f'{name} (+{gaps[name]:,.0f}{unit})' for name in dearer)}"] if dearer else []
    if cheaper:
        parts.append(f"less {', '.join(f'{name} ({gaps[name]:,.0f}{unit})' for name in cheaper)}")
    return f"{loser} lost by {worse:.1%}: {'; '.join(parts) or 'rounding'}"


def _critical(plan: Plan) -> list[str]:
    edge = critical_edge(traffic(plan))
    if edge is None:
        return []
    source, target, operand, size, cycles = edge
    return [f"heaviest flow: {operand} from {source} to {target}, {bytes_text(size)}, {cycles:,.0f} cycles"]


def _rejections(plan: Plan) -> Iterator[str]:
    for item in plan.rejected[:_TOP]:
        yield f"  {item.what}: {item.reason}"
    if len(plan.rejected) > _TOP:
        yield f"  and {len(plan.rejected) - _TOP} more (all stand in the JSON document)"


def bytes_text(size: float) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"


def seconds_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e9:.1f} ns"
