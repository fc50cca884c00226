# SPDX-License-Identifier: Apache-2.0
"""SConv: direct convolution by slicing, windows packed tile by tile on demand (arXiv 2303.04739).

The nest is `pysim.cachemodel.cpu.nest`; its micro-kernels are the rows of `native/kernels.inc`.
"""

from pysim.algorithms.interface import direct_sum, requires_nchw
from pysim.algorithms.nest import OnNest, packed_filters
from pysim.algorithms.nest import contract as contract
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.threads import nest_part
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout

NAME = "sconv"
QUANTISED = True
COMPUTES = Conv
VOLUMES = True
tolerance, prepare, largest_part = direct_sum, packed_filters, nest_part

_NEST = OnNest(nest_of, "direct convolution by slicing, tiles of windows packed on demand", rooms=1)
least_cycles, candidates, workspace_bytes = _NEST.least_cycles, _NEST.candidates, _NEST.workspace_bytes
describe, nests = _NEST.describe, _NEST.nests


def refuses(problem: Conv, machine: Machine, layout: Layout) -> Reason | None:
    return requires_nchw(layout)
