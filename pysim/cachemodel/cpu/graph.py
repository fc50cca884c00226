# SPDX-License-Identifier: Apache-2.0
"""A plan's traffic as a graph: memory, cache levels and registers are nodes, each operand's flow between two is an edge.

Edges carry `bytes` (both directions) and `cycles`: an operand's share, by bytes, of the cycles that the cost charges its supplier,
and between L1 and the registers the bytes that micro-kernels load and store over the rate of L1. Under CSA, whose lines are not told
apart, each level supplies L1 by one edge "lines" of lines x latency. networkx is imported here only.

Worked number: a 32 x 14 micro-kernel loads (32 + 14) x 4 = 184 bytes a step, in 184 / 59 = 3.1 cycles of L1 reads on zen4, while its
28 multiply-adds take 28 cycles.
"""

from collections.abc import Iterator
from typing import Any

from pysim.cachemodel.cpu.nest import Nest, ceil_div, nest_of
from pysim.record.cost import Cost, CsaCost
from pysim.record.plan import Plan, on_cpu

REGISTERS = "registers"
Edge = tuple[str, str, str, float, float]  # supplier, receiver, operand, bytes, cycles


def traffic(plan: Plan, nest: Nest | None = None) -> Any:
    """The networkx.MultiDiGraph of a plan and its nest, that of its problem unless one is given.

    An edge's key is its operand. The graph knows `bound_by` and compute cycles by term.
    """
    import networkx as nx

    graph = nx.MultiDiGraph(problem=plan.problem, machine=plan.machine, model=plan.model)
    for level in on_cpu(plan)[1].levels:
        graph.add_node(level.name, bytes=level.size_bytes)
    graph.add_node("memory")
    if isinstance(plan.cost, Cost):
        graph.add_node(REGISTERS, **{term: cycles for term, cycles in plan.cost.terms.items() if term not in plan.cost.levels})
    for supplier, receiver, operand, size, cycles in edges(plan, nest or nest_of(plan.workload)):
        graph.add_edge(supplier, receiver, key=operand, bytes=size, cycles=cycles)
    return graph


def edges(plan: Plan, nest: Nest) -> Iterator[Edge]:
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
    for operand, read, written in _register_bytes(plan, nest):
        rate = levels[0]
        cycles = read / rate.read_bytes_per_cycle.value + written / rate.write_bytes_per_cycle.value
        yield names[0], REGISTERS, operand, read + written, cycles


def _register_bytes(plan: Plan, nest: Nest) -> Iterator[tuple[str, float, float]]:
    """(operand, bytes read, bytes written) by micro-kernels, whole tiles but for the skipped kernel rows."""
    s = on_cpu(plan)[0]
    full, edge = nest.live_rows(s.windows)
    steps = nest.repeats * (full + edge) * nest.channels * nest.kernel_w * ceil_div(nest.filters, s.filters)
    yield "packed" if s.pack == "tiles" else "input", float(steps * s.windows * nest.element_bytes), 0.0
    yield "filters", float(steps * s.filters * nest.element_bytes), 0.0
    out = float(nest.repeats * nest.windows * nest.filters * nest.out_bytes)
    sets = ceil_div(nest.channels, s.channels)
    yield "output", out * (sets - 1), out * sets


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


def critical_edge(graph: Any) -> Edge | None:
    """The flow that costs most cycles, or None where nothing flows."""
    flows = ((source, target, key, data["bytes"], data["cycles"]) for source, target, key, data in graph.edges(keys=True, data=True))
    return max(flows, key=lambda edge: edge[4], default=None)
