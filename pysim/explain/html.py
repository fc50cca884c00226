# SPDX-License-Identifier: Apache-2.0
"""A plan as notebooks show it: its predicted time by term, or the slicing analysis's lines; the explanation when it is unfolded."""

from pysim.explain.text import explain
from pysim.record.cost import Cost
from pysim.record.description import seconds_text
from pysim.record.html import table
from pysim.record.plan import Plan


def html(plan: Plan) -> str:
    head, cost = f"{plan.problem} on {plan.machine}: {plan.algorithm}", plan.cost
    if not isinstance(cost, Cost):
        lines = [(name, f"{value:,}") for name, value in (("cold", cost.cold), ("extra", cost.extra), ("L3", cost.l3), ("L2", cost.l2))]
        return table(f"{head}, cost {cost.cost:,} cycles", ("lines", "number"), lines, explain(plan))
    terms = sorted(((cycles, name) for name, cycles in cost.counted.items() if cycles), reverse=True)
    rows = [(name, seconds_text(cycles * cost.seconds / cost.cycles), f"{cycles / cost.cycles:.1%}") for cycles, name in terms]
    return table(f"{head}, {seconds_text(cost.seconds)} predicted", ("part", "time", "share"), rows, explain(plan))
