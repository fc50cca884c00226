# SPDX-License-Identifier: Apache-2.0
"""A plan's traffic as a graph. Nodes are memory, cache levels and registers; an edge is the flow of one operand between two of them.

Edges have `bytes` (both directions) and `cycles`: an operand's share, by bytes, of the cycles that the cost charges its supplier.
Between L1 and the registers, bytes are those that micro-kernels load and store, at the rate of L1. The slicing analysis does not separate
operands, so each level supplies L1 by one edge "lines" with lines x latency.

Worked number: a 32 x 14 micro-kernel loads (32 + 14) x 4 = 184 bytes a k-iteration, in 184 / 59 = 3.1 cycles of L1 reads on zen4, while its
28 multiply-adds take 28 cycles.
"""

from collections.abc import Iterator

from pysim.cachemodel.cpu.reuse.loops import LoopNest
from pysim.record.cost import CsaCost
from pysim.record.plan import Plan, on_cpu

REGISTERS = "registers"
Edge = tuple[str, str, str, float, float]  # supplier, receiver, operand, bytes, cycles


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
