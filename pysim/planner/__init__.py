# SPDX-License-Identifier: Apache-2.0
"""Plans: which algorithm, kernel and loop nest for a problem on a machine, with the reasons.

plan("conv:mb1ic64ih56oc64kh3ph1", "zen4")     the plan of least predicted cost
plans(problem, machine, top=10)                the ten best, each with the rejected kernels
candidates(problem, machine, within=1.35)      every schedule within 1.35 times the best, with its predicted seconds
"""

from pysim.planner.plan import candidates, forget, plan, planned, plans, request_of

__all__ = ["candidates", "forget", "plan", "planned", "plans", "request_of"]
