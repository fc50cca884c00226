# SPDX-License-Identifier: Apache-2.0
"""Every way to compute a convolution or a matrix product: one module each under `cpu/` and `gpu/`, which answers the questions of
`interface.Algorithm`, by itself or by its `ALGORITHM`. The table of algorithms is what those folders hold; nothing else names one."""

import pkgutil
from functools import cache
from importlib import import_module
from typing import cast

from pysim.algorithms.interface import Algorithm
from pysim.errors import PlanError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.text import Workload


@cache
def _folder(kind: str) -> tuple[Algorithm, ...]:
    found = pkgutil.walk_packages(import_module(f"{__name__}.{kind}").__path__, f"{__name__}.{kind}.")
    names = sorted((one.name for one in found if not one.ispkg), key=lambda name: name.rpartition(".")[2])
    modules = (import_module(name) for name in names)
    return tuple(cast("Algorithm", getattr(module, "ALGORITHM", module)) for module in modules)


def algorithms_for(problem: Workload, machine: Machine | Gpu, name: str | None = None) -> tuple[Algorithm, ...]:
    """The algorithms that compute this kind of problem on this kind of machine, by name; only the one of a name, if given."""
    if name is not None:
        return (algorithm_named(name, problem, machine),)
    return tuple(one for one in _folder("gpu" if isinstance(machine, Gpu) else "cpu") if isinstance(problem, one.COMPUTES))


def algorithm_named(name: str, problem: Workload, machine: Machine | Gpu) -> Algorithm:
    """The algorithm of that name; if there is none, a PlanError that lists all."""
    known = {one.NAME: one for one in algorithms_for(problem, machine)}
    if not isinstance(name, str) or name not in known:
        raise PlanError(f"{problem.text} has no algorithm {quoted(name)} on {machine.name}; {choose(name, known)}")
    return known[name]
