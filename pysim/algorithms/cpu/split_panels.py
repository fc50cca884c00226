# SPDX-License-Identifier: Apache-2.0
"""Products of FP32 on a matrix unit with a B that was split and packed in advance. A is split and packed in the run.

    panels = [set of channels][tile of windows][block of channels][part][windows of a tile], whole blocks and tiles

`panels` does this for other types; in FP32 it reads A in place, which no matrix unit does.

Worked number: gemm:197x768x768 in tiles of 32 columns has 24 panels of 24 blocks of 6,144 bytes, 3,538,944 bytes.
"""

from functools import lru_cache, partial

import msgspec

from pysim.algorithms.interface import Prepared, direct_sum
from pysim.algorithms.nest import OnNest
from pysim.algorithms.nest import contract as contract
from pysim.cachemodel.cpu import nest as loops
from pysim.cachemodel.cpu import nest_schedules
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.reuse.loops import Array
from pysim.cachemodel.cpu.threads import nest_part
from pysim.machine.cpu import Machine
from pysim.problem.gemm import Gemm
from pysim.record.cost import NoneLegal, Reason, Rejected
from pysim.record.plan import Layout, Request
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels

NAME = "split_panels"
COMPUTES = Gemm
tolerance, largest_part = direct_sum, partial(nest_part, prepared=True)


def nest_of(problem: Gemm) -> loops.Nest:
    return msgspec.structs.replace(loops.nest_of(problem), in_place=True, windows_packed=True, windows_transposed=False)


_NEST = OnNest(nest_of, "matrix product of split operands, B packed in advance", ("tiles",), NAME)
workspace_bytes, describe, nests = _NEST.workspace_bytes, _NEST.describe, _NEST.nests


def refuses(problem: Gemm, machine: Machine, layout: Layout) -> Reason | None:
    return _machine_refuses(problem.dtype, machine)


@lru_cache(maxsize=64)
def _machine_refuses(dtype: str, machine: Machine) -> Reason | None:
    if any(row.split and row.dtype == dtype and machine.unit(row.target) for row in kernels()):
        return None
    return Reason("machine", f"{machine.name} has no {dtype} kernel that splits operands")


def least_cycles(request: Request, best: float) -> float:
    return _NEST.least_cycles(request, best) if request.prepared else 0.0


def candidates(request: Request, limit: Array | float = 0.0) -> nest_schedules.Found | NoneLegal:
    if request.prepared or request.schedule is not None:
        return _NEST.candidates(request, limit)
    return NoneLegal((Rejected(NAME, "B is not prepacked; use pysim.prepare, or plan with prepared=True", "shape"),))


def prepare(problem: Gemm, schedule: Schedule, layout: Layout) -> Prepared:
    return Prepared("split panels of B", loops.window_panel_bytes(nest_of(problem), schedule))
