# SPDX-License-Identifier: Apache-2.0
"""What is planned for a layer on a machine that need not be here, why, and how fast it will be."""

import pysim

LAYER = "conv:mb1ic64ih56oc64kh3ph1"  # 1 image of 64 channels, 56x56; 64 filters of 3x3, padded by 1

plan = pysim.plan(LAYER, machine="power10-e1050")
print(plan.explain())

print(f"\n{LAYER} on other machines:")
for machine in ("zen4", "sapphire-rapids", "h200"):
    plan = pysim.plan(LAYER, machine=machine)
    print(f"{machine:16} {plan.cost.seconds * 1e6:7.1f} us, bound by {plan.cost.bound_by:12} {plan.name}")
