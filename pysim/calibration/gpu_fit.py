# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the GPU cost model to measured products, by least squares.

    minimise over x:  sum over launches   w rho(log(predicted(x) / measured))  +  sum over constants  (h_c (x_c - prior_c))^2

x are logarithms of constants, within BOUNDS: constants are positive, and errors of times are factors. rho is soft_l1 from 10 % on. The
prior h_c keeps constants in place that few launches depend on. Launches within MAX_SLOWDOWN of a problem's best weigh more, since the
planner chooses among them; every problem has the same weight. All problems are predicted at once as one table. A family's constants and a
kernel's efficiency affect only their own launches, so one prediction gives the derivatives of many parameters.

The error of a constant is its standard deviation, from the curvature at the optimum.

Worked number: PRIOR = 0.05: a constant that is off by a factor of e costs as much as one problem with all launches 5 % off.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import waves
from pysim.cachemodel.gpu.columns import Columns, Table
from pysim.cachemodel.gpu.launches import columns_of, constants_of
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.machine.quantity import Number
from pysim.problem.gemm import Gemm
from pysim.registry.cuda import Attributes, GemmKernel

Floats = NDArray[np.float64]
Known = dict[str, Attributes]  # of kernels, by name

MAX_SLOWDOWN, FAST_WEIGHT = 1.5, 3.0  # weight of launches up to this slowdown over the best
FULL_WEIGHT_SAMPLES = 4  # a median of fewer samples weighs less
MAX_LAUNCHES = 64  # of a problem, in the fit
RATES = (
    "l2_bytes_per_second",
    "memory_bytes_per_second",
    "l2_latency_cycles",
    "memory_latency_cycles",
    "port_bytes_per_cycle",
    "memory_port_bytes_per_cycle",
)
STARTS = ("pass_seconds", "clear_seconds", "copy_share", "single_cycles")
CONSTANTS = (*STARTS, "l2_share", "repeat_share")
OF_FAMILY = tuple(name for name in GpuFamily.__struct_fields__ if name != "efficiency")
BOUNDS = {  # plausible range of each constant
    "launch_seconds": (1e-6, 2e-5), "pass_seconds": (2e-7, 1e-5), "clear_seconds": (1e-7, 1e-5),
    "copy_share": (0.05, 1), "block_cycles": (1, 20000), "step_cycles": (0.1, 1000), "meet_cycles": (10, 20000),
    "hidden": (1e-3, 1), "l2_share": (0.2, 1), "repeat_share": (0.01, 1), "single_cycles": (0.01, 10), "l2_bytes_per_second": (1e12, 3e13),
    "memory_bytes_per_second": (1e12, 4.8e12), "l2_latency_cycles": (100, 2000),
    "memory_latency_cycles": (200, 5000),
    "port_bytes_per_cycle": (16, 64), "memory_port_bytes_per_cycle": (4, 64),
}  # fmt: skip
EFFICIENCY = (0.05, 1.6)  # above 1 the counts of a step are too high
PRIOR, EFFICIENCY_PRIOR = 0.05, 0.15  # how strongly constants and kernels' efficiencies are held where they stand
SOFT = 0.1  # errors from which on they count in proportion


class Case(NamedTuple):
    """One problem with its measured launches: a table over `kernels`, seconds of each, in how many samples."""

    problem: Gemm
    kernels: tuple[GemmKernel, ...]
    table: Table
    seconds: Any
    samples: Any


class Moved(NamedTuple):
    """What is fitted besides the families' constants: constants of the machine file's [model] and top level, by name; efficiencies."""

    model: tuple[str, ...] = STARTS
    machine: tuple[str, ...] = ()
    efficiencies: bool = False


class Measured(NamedTuple):
    """The measured cases of a machine."""

    gpu: Gpu
    cases: Sequence[Case]


class Fitted(NamedTuple):
    """The machines with fitted constants, the attributes of the measured kernels, and the relative error of each constant by path."""

    gpus: tuple[Gpu, ...]
    known: Known
    errors: dict[str, float]


def half_of(problem: Gemm) -> int:
    """The half that a problem belongs to, by a hash of its text. Not its index: every second problem has rows of whole vectors."""
    return zlib.crc32(problem.text.encode()) & 1


def family_name(gpu: Gpu, kernel: GemmKernel) -> str:
    """The key of the machine's constants for a kernel."""
    return constants_of(gpu, kernel.families)[0]


def columns(case: Case, gpu: Gpu, known: Known) -> Columns:
    """A case's kernels as columns of the model."""
    return columns_of([one.columns for one in gemm.variants(gpu, case.problem, case.kernels, known) if one.columns])


def predicted(case: Case, gpu: Gpu, known: Known) -> Floats:
    """Seconds of a case's launches."""
    found: Floats = waves.predict(gpu, columns(case, gpu, known), case.table).cycles / gpu.clock_hz
    return found


def errors_of(cases: Sequence[Case], gpu: Gpu, known: Known) -> Floats:
    """log(predicted / measured) of all launches."""
    return np.concatenate([np.log(predicted(case, gpu, known) / case.seconds) for case in cases])


def sampled(case: Case) -> NDArray[np.intp]:
    """The launches of a case in the fit: the fastest, and evenly spread ones."""
    order = np.argsort(case.seconds)
    return np.unique(np.concatenate([order[: MAX_LAUNCHES // 3], order[:: max(1, len(order) // MAX_LAUNCHES)]]))


class _Batch(NamedTuple):
    """The launches of all cases as one table, with kernels of efficiency 1; the cycles that arithmetic takes of a k-iteration, and the
    kernel and family index of each column."""

    columns: Columns
    arithmetic: Floats
    table: Table
    seconds: Floats
    weight: Floats
    kernel: NDArray[np.intp]
    family: NDArray[np.intp]


def fit(measured: Sequence[Measured], known: Known, moved: Moved) -> Fitted:
    """Fits the machines and their kernels to measured launches; `known`: the kernels' attributes, with known efficiencies. Several machines
    are variants of one chip: a fitted constant is one number for all of them, their other numbers stay different."""
    kernels = list({kernel.name: kernel for _, cases in measured for case in cases for kernel in case.kernels}.values())
    parameters = _Parameters(measured[0].gpu, kernels, known, moved)
    batches = [_batch(one.gpu, one.cases, kernels, parameters) for one in measured]

    def residuals(vector: Floats) -> Floats:
        parts = []
        for one, batch in zip(measured, batches, strict=True):
            on, efficiencies = parameters.parts(vector, one.gpu)
            seconds = waves.predict(on, _with(on, parameters.families, efficiencies, batch), batch.table).cycles / on.clock_hz
            parts.append(batch.weight * np.log(seconds / batch.seconds))
        return np.concatenate([*parts, parameters.strength * (vector - parameters.start)])

    found = least_squares(
        residuals, parameters.start, bounds=(parameters.low, parameters.high), loss="soft_l1", f_scale=SOFT, max_nfev=40,
        jac_sparsity=_sparsity(batches, parameters),
    )  # fmt: skip
    jacobian = found.jac.toarray()
    spread = 2 * found.cost / max(1, sum(len(batch.seconds) for batch in batches) - len(found.x))
    covariance = spread * np.linalg.pinv(jacobian.T @ jacobian)
    deviations = np.sqrt(np.maximum(0.0, np.diag(covariance)))
    machines = tuple(parameters.machine(found.x, one.gpu) for one in measured)
    return Fitted(machines, known | parameters.attributes(found.x), dict(zip(parameters.names, deviations.tolist(), strict=False)))


def _batch(gpu: Gpu, cases: Sequence[Case], kernels: Sequence[GemmKernel], parameters: "_Parameters") -> _Batch:
    plain = {k.name: msgspec.structs.replace(gemm.attributes_of(k, parameters.known), efficiency=1.0) for k in kernels}
    number = {k.name: place for place, k in enumerate(kernels)}
    own, arithmetic, tables, weights, seconds, of, first = [], [], [], [], [], list[int](), 0
    for case in cases:
        variants = gemm.variants(gpu, case.problem, case.kernels, plain)
        own += [one.columns for one in variants if one.columns]
        arithmetic += [one.work.arithmetic for one in variants if one.columns and one.work]
        some = sampled(case)
        table = case.table.select(some)
        tables.append(table._replace(variant=table.variant + first))
        weight = np.where(case.seconds[some] <= MAX_SLOWDOWN * case.seconds.min(), FAST_WEIGHT, 1.0)
        weights.append(weight * np.sqrt(np.minimum(case.samples[some], FULL_WEIGHT_SAMPLES) / FULL_WEIGHT_SAMPLES) / np.sqrt(len(some)))
        seconds.append(case.seconds[some])
        of += [number[k.name] for k in case.kernels]
        first += len(case.kernels)
    table = Table(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))
    kernel = np.array(of)
    family = np.array([parameters.families.index(family_name(gpu, k)) for k in kernels])[kernel]
    return _Batch(columns_of(own), np.array(arithmetic), table, np.concatenate(seconds), np.concatenate(weights), kernel, family)


def _with(gpu: Gpu, families: Sequence[str], efficiencies: Floats, batch: _Batch) -> Columns:
    """The columns of a batch with these constants and efficiencies."""
    found, share, constants = batch.columns, efficiencies[batch.kernel], [gpu.model.families[name] for name in families]
    own = {name: np.array([getattr(one, name).value for one in constants])[batch.family] for name in OF_FAMILY}
    iteration = np.maximum(batch.arithmetic, found.iteration / share)
    return found._replace(iteration=iteration, lone=found.lone * iteration / found.iteration, **own)


def _sparsity(batches: Sequence[_Batch], parameters: "_Parameters") -> Any:
    """Which residuals depend on each parameter: the family's or kernel's own launches, or all."""
    count, shared = len(parameters.start), len(parameters.shared)
    family = np.concatenate([batch.family[batch.table.variant] for batch in batches])
    kernel = np.concatenate([batch.kernel[batch.table.variant] for batch in batches])
    touched, rows = np.zeros((len(family), count), int), np.arange(len(family))
    touched[:, :shared] = 1
    for place in range(len(OF_FAMILY)):
        touched[rows, shared + family * len(OF_FAMILY) + place] = 1
    if parameters.moved.efficiencies:
        touched[rows, len(parameters.names) + kernel] = 1
    return np.concatenate([touched, np.eye(count, dtype=int)])


class _Parameters:
    """Machine constants and kernel efficiencies as one vector of logarithms."""

    def __init__(self, gpu: Gpu, kernels: Sequence[GemmKernel], known: Known, moved: Moved) -> None:
        self.gpu, self.kernels, self.known, self.moved = gpu, kernels, known, moved
        self.families = sorted({family_name(gpu, k) for k in kernels})
        self.shared = (*moved.model, *moved.machine)
        self.names = [*self.shared, *(f"{family}.{name}" for family in self.families for name in OF_FAMILY)]
        start = [getattr(gpu.model, name).value for name in moved.model] + [getattr(gpu, name).value for name in moved.machine]
        start += [getattr(gpu.model.families[family], name).value for family in self.families for name in OF_FAMILY]
        self.fixed = np.array([self._efficiency(k) for k in kernels])
        free = len(kernels) if moved.efficiencies else 0
        start += self.fixed[:free].tolist()
        limits = [BOUNDS[name.rpartition(".")[2]] for name in self.names] + [EFFICIENCY] * free
        self.strength = np.repeat([PRIOR, EFFICIENCY_PRIOR], [len(self.names), free])
        self.low, self.high = np.log(np.array(limits)).T
        self.start = np.clip(np.log(np.maximum(start, 1e-12)), self.low + 1e-6, self.high - 1e-6)

    def _efficiency(self, kernel: GemmKernel) -> float:
        own = self.known[kernel.name].efficiency if kernel.name in self.known else None
        return own or self.gpu.model.families[family_name(self.gpu, kernel)].efficiency.value

    def parts(self, vector: Floats, gpu: Gpu) -> tuple[Gpu, Floats]:
        """A machine, and the efficiency of each kernel."""
        values = np.exp(vector)
        numbers = {name: Number(value=float(x), kind="fitted", source="fit") for name, x in zip(self.names, values, strict=False)}
        efficiencies = values[len(self.names) :] if self.moved.efficiencies else self.fixed
        families = {
            family: msgspec.structs.replace(gpu.model.families[family], **{name: numbers[f"{family}.{name}"] for name in OF_FAMILY})
            for family in self.families
        }
        own = {name: numbers[name] for name in self.moved.model}
        model = msgspec.structs.replace(gpu.model, **own, families=gpu.model.families | families)
        return msgspec.structs.replace(gpu, model=model, **{name: numbers[name] for name in self.moved.machine}), efficiencies

    def machine(self, vector: Floats, gpu: Gpu) -> Gpu:
        """The machine of a parameter vector."""
        gpu, efficiencies = self.parts(vector, gpu)
        if not self.moved.efficiencies:
            return gpu
        families, own = dict(gpu.model.families), [family_name(gpu, k) for k in self.kernels]
        for family in self.families:
            some = [one for one, name in zip(efficiencies, own, strict=True) if name == family]
            median = Number(value=float(np.median(some)), kind="fitted", source="fit")
            families[family] = msgspec.structs.replace(families[family], efficiency=median)
        return msgspec.structs.replace(gpu, model=msgspec.structs.replace(gpu.model, families=families))

    def attributes(self, vector: Floats) -> Known:
        """The kernels' attributes with the efficiencies of a parameter vector, where these are fitted."""
        return {
            kernel.name: msgspec.structs.replace(gemm.attributes_of(kernel, self.known), efficiency=float(efficiency))
            for kernel, efficiency in zip(self.kernels, np.exp(vector)[len(self.names) :], strict=False)
        }
