# SPDX-License-Identifier: Apache-2.0
"""Matrix products whose A is read where it lies, whatever its layout: the nest of `pysim.algorithms.cpu.gemm` without panels of A.

Kernels that broadcast the elements of A one by one do not care how far apart these lie (`native/kernel.h`, pysim_strided_kernel). What is
saved is a copy of A in every run; what A costs where its rows share sets of a cache is in the model.

Worked number: gemm:730x64x33:nt packs A's 24,090 elements for 1.5 million multiply-adds, a vector for each 4 multiply-adds of vectors.
"""

import msgspec

from pysim.algorithms.contract import direct_sum, nothing_prepared
from pysim.algorithms.nest import BROADCASTS, OnNest, broadcasts
from pysim.cachemodel.cpu import nest as nests
from pysim.cachemodel.cpu.nested import cost as cost
from pysim.cachemodel.cpu.threads import nest_part
from pysim.problem.gemm import Gemm

NAME = "unpacked"
COMPUTES = Gemm
tolerance, prepare, largest_part = direct_sum, nothing_prepared, nest_part


def nest_of(problem: Gemm) -> nests.Nest:
    return msgspec.structs.replace(nests.nest_of(problem), filters_packed=True, filters_in_place=True)


_NEST = OnNest(nest_of, "matrix product, columns of C as windows and rows as filters, A in place", BROADCASTS, NAME)
refuses, least_cycles, candidates = broadcasts, _NEST.least_cycles, _NEST.candidates
workspace_bytes, describe = _NEST.workspace_bytes, _NEST.describe
