# SPDX-License-Identifier: Apache-2.0
"""The cost with simulated caches is the cost model with exact counts: same in-core terms, the trace's own lines."""

from typing import Any

import pytest

from pysim import planner
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.cachemodel.simulator.simulated import simulated_cost
from pysim.errors import PlanError
from pysim.machine.load import load
from pysim.problem.text import parse

LAYERS = ("conv:mb1ic64ih28oc48kh3ph1", "conv:mb1ic96ih14oc64kh1", "gemm:96x200x64")
MACHINES = ("xeon-4208", "power10-e1050")


def costs(problem: str, machine: str, hot: bool = True) -> tuple[Any, Any, Any]:
    """The plan, and the cost of its schedule with simulated caches; filters of a small cache hierarchy stay what they are."""
    on = load(machine)
    plan = planner.plan(problem, on, state="hot" if hot else "cold", algorithm="sconv" if problem.startswith("conv") else "gemm")
    return on, plan, simulated_cost(plan.workload, on, plan.schedule, hot)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("problem", LAYERS)
def test_arithmetic_and_calls_are_those_of_the_prediction(problem: str, machine: str) -> None:
    _, plan, cost = costs(problem, machine)
    assert {name: cost.terms[name] for name in ("kernel", "call")} == {name: plan.cost.terms[name] for name in ("kernel", "call")}
    assert set(cost.terms) == set(plan.cost.terms)
    assert cost.seconds == pytest.approx(plan.cost.seconds, rel=0.2)


@pytest.mark.parametrize("problem", LAYERS)
def test_lines_are_the_misses_and_write_backs_of_the_trace(problem: str) -> None:
    on, plan, cost = costs(problem, "xeon-4208")
    counted = trace.simulate(plan.workload, plan.schedule, Hierarchy.from_machine(on), warm=True)
    for level, supplier in zip(("L1", "L2", "L3"), ("L2", "L3", "memory"), strict=True):
        found = cost.levels[supplier]
        assert found["writeback_lines"] == counted[level].writebacks
        assert found["lines"] == pytest.approx(counted[level].misses + counted[level].writebacks, rel=0.02)


def test_a_hot_run_that_fits_l1_costs_its_compute_terms_alone() -> None:
    _, _, cost = costs("conv:mb1ic8ih8oc8kh1", "xeon-4208")
    assert cost.cycles == sum(value for name, value in cost.terms.items() if name not in cost.levels) > 0


def test_cold_caches_bring_every_line_of_the_operands_from_memory() -> None:
    _, plan, cold = costs("conv:mb1ic64ih28oc48kh1", "xeon-4208", hot=False)
    w = plan.workload
    touched = 4 * (w.channels * w.windows + w.filters * w.channels + w.filters * w.windows) / 64
    assert cold.levels["memory"]["lines"] - cold.levels["memory"]["writeback_lines"] == pytest.approx(touched, rel=0.02)
    assert cold.levels["memory"]["writeback_lines"] == pytest.approx(4 * w.filters * w.windows / 64, rel=0.02)


def test_a_kernel_that_no_registry_has_is_refused() -> None:
    on, plan, _ = costs(LAYERS[0], "xeon-4208")
    import msgspec

    with pytest.raises(PlanError, match="is not in the registry"):
        simulated_cost(parse(LAYERS[0]), on, msgspec.structs.replace(plan.schedule, kernel="f32_win_1x1__abacus"))
