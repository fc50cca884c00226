# SPDX-License-Identifier: Apache-2.0
"""Matrix products with A read in place, whatever its layout: the nest of `pysim.algorithms.cpu.gemm` without panels of A.

Kernels that broadcast elements of A do not depend on their distance (`native/kernel.h`, pysim_strided_kernel). This saves a copy of A in
every run. The model counts the conflict misses of rows of A that share sets.

Worked number: gemm:730x64x33:nt would pack 24,090 elements of A for 1.5 million multiply-adds, a packed vector for 4 vector multiply-adds.
"""

from functools import lru_cache

import msgspec

from pysim.algorithms.interface import direct_sum, nothing_prepared
from pysim.algorithms.nest import BROADCASTS, OnNest, broadcasts
from pysim.algorithms.nest import contract as contract
from pysim.cachemodel.cpu import nest as loops
from pysim.cachemodel.cpu.nest_schedules import cost as cost
from pysim.cachemodel.cpu.threads import nest_part
from pysim.problem.gemm import Gemm

NAME = "unpacked"
COMPUTES = Gemm
tolerance, prepare, largest_part = direct_sum, nothing_prepared, nest_part


@lru_cache(maxsize=64)
def nest_of(problem: Gemm) -> loops.Nest:
    return msgspec.structs.replace(loops.nest_of(problem), filters_packed=True, filters_in_place=True)


_NEST = OnNest(nest_of, "matrix product, columns of C as windows and rows as filters, A read in place", BROADCASTS, NAME)
refuses, least_cycles, candidates = broadcasts, _NEST.least_cycles, _NEST.candidates
workspace_bytes, describe, nests = _NEST.workspace_bytes, _NEST.describe, _NEST.nests
