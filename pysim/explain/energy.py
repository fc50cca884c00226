# SPDX-License-Identifier: Apache-2.0
"""The predicted energy of plans (`pysim/machine/energy.py` has the equation), of the FLOPs that their kernels execute and of the bytes
that their costs count."""

from pysim.algorithms import algorithm_named
from pysim.cachemodel.cpu.nest_text import peak_of
from pysim.cachemodel.gpu.launch_text import pipe_and_rate
from pysim.machine.gpu import Gpu
from pysim.record.cost import Cost
from pysim.record.plan import Plan

LEAST_SHARE = 0.02  # of the energy, for a part that is named


def counts_of(plan: Plan) -> tuple[str, float, dict[str, float]]:
    """What takes energy in one run: the pipe or element type, the FLOPs that are executed, and the bytes that each level supplies."""
    assert isinstance(plan.cost, Cost)
    on, w = plan.on, plan.workload
    peak = algorithm_named(plan.algorithm, w, on).describe(plan).peak_flops
    kind, rate = pipe_and_rate(on, plan) if isinstance(on, Gpu) else (w.dtype, peak and min(peak, peak_of(plan)))
    moved = {name: amounts["bytes"] for name, amounts in plan.cost.levels.items() if "bytes" in amounts}
    return kind, w.flops * (rate / peak if peak else 1.0), moved


def energy_of(plan: Plan) -> dict[str, float] | None:
    """Joules of one run by part: static, multiply-adds, levels; None where the machine's file has none for the plan, and for the slicing
    analysis."""
    if plan.on.energy is None or not isinstance(plan.cost, Cost):
        return None
    return plan.on.energy.joules(*counts_of(plan), plan.cost.seconds, plan.threads)


def joules_of(plan: Plan) -> float | None:
    """Joules of one run; None where they are not known."""
    parts = energy_of(plan)
    return sum(parts.values()) if parts else None


def joules_text(joules: float) -> str:
    """12.3 mJ."""
    for unit, scale in (("J", 1.0), ("mJ", 1e-3)):
        if joules >= scale:
            return f"{joules / scale:.3g} {unit}"
    return f"{joules * 1e6:.3g} uJ"


def energy_line(plan: Plan) -> str:
    """The energy as one line; empty where it is not known."""
    parts = energy_of(plan)
    if not parts or not isinstance(plan.cost, Cost):
        return ""
    total = sum(parts.values())
    shares = sorted(((joules / total, name) for name, joules in parts.items()), reverse=True)
    told = ", ".join(f"{share:.0%} {name}" for share, name in shares if share >= LEAST_SHARE)
    return f"energy {joules_text(total)} predicted, {total / plan.cost.seconds:.3g} W: {told}"
