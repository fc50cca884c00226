# SPDX-License-Identifier: Apache-2.0
"""The contract that a layer's plans keep under accuracy reproducible.

On a CPU a rule says it (`pysim.algorithms.reproducible`). On a GPU the cost model chooses it: of the contracts that strict plans keep at
every one of BATCHES (of a product: ROWS), the one whose times have the least mean square, each over the fastest plan's that keeps a
contract at that size: the worst size counts most, but a little gained there does not outweigh much lost elsewhere. That is a function of
the layer and its layout alone; all GPUs of one compute capability ask one machine file (`model_of`).

Worked number: 512 to 512 channels of 3x3 at 7x7 take 23.6, 45.4 and 161 us under strict on the h200, at batches of 1, 8 and 64. Tf32
halves in 8 parts take 1.29, 1.14 and 1.28 times that, and no other contract less in the mean square.
"""

import math
from collections import defaultdict
from functools import cache, lru_cache

import msgspec
import numpy as np

from pysim.algorithms import reproducible
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any, names
from pysim.planner.table import Table
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.contract import GpuContract
from pysim.record.plan import Layout, Request
from pysim.registry.cuda import WHOLE_NUMBERS

BATCHES, ROWS = (1, 8, 64), (1, 64, 1024, 16384)
PARTS = (1, 2, 4, 8, 16)  # of k


def asked(request: Request) -> Request:
    """A request with the contract that its accuracy asks for, and the parts of k by which it is kept."""
    if not request.reproducible or request.contract is not None:
        return request
    if not isinstance(request.machine, Gpu):
        return msgspec.structs.replace(request, contract=reproducible.contract_of(request.problem))
    contract = chosen(resized(request.problem, 1), request.layout, request.gpu)
    parts = () if contract is None or contract.sums == WHOLE_NUMBERS else (contract.parts,)
    return msgspec.structs.replace(request, contract=contract, parts=parts)


def resized(problem: Workload, size: int) -> Workload:
    """The layer with another batch, or a product with as many rows."""
    return msgspec.structs.replace(problem, **({"batch": size} if isinstance(problem, Conv) else {"m": size}))


@lru_cache(maxsize=4096)
def chosen(layer: Workload, layout: Layout, gpu: Gpu) -> GpuContract | None:
    """The contract of a layer of any batch; None if nothing keeps one."""
    if (model := model_of(gpu.capability) or gpu) != gpu:
        return chosen(layer, layout, model)
    ratios = defaultdict[GpuContract, list[float]](list)
    sizes = BATCHES if isinstance(layer, Conv) else ROWS
    for size in sizes:
        times = contracts_of(Request(resized(layer, size), gpu, layout, accuracy="strict", parts=PARTS))
        for contract, cycles in times.items():
            ratios[contract].append(cycles / min(times.values()))
    most = max((len(some) for some in ratios.values()), default=0)  # fewer sizes where a layer is too large
    return min((one for one in ratios if len(ratios[one]) == most), key=lambda one: (math.hypot(*ratios[one]), str(one)), default=None)


def contracts_of(request: Request) -> dict[GpuContract, float]:
    """The contracts that plans keep, and the least cycles of each."""
    least = dict[GpuContract, float]()
    for algorithm, costs in Table.of(request, exhaustive=True).costs:
        _, first, alike = np.unique(costs.alike, return_index=True, return_inverse=True)
        cycles = np.full(len(first), math.inf)
        np.minimum.at(cycles, alike, costs.cycles)
        for row, of in zip(first.tolist(), cycles.tolist(), strict=True):
            contract = reproducible.contract(algorithm, request.problem, costs.schedule(row), request.layout)
            if isinstance(contract, GpuContract):
                least[contract] = min(of, least.get(contract, math.inf))
    return least


@cache
def model_of(capability: str) -> Gpu | None:
    """The GPU by which all of a compute capability choose: the first machine file that has it, before those of constants from another."""
    shipped = [one for name in names() if isinstance(one := load_any(name), Gpu) and one.capability == capability]
    return min(shipped, key=lambda one: "like" in one.sources, default=None)
