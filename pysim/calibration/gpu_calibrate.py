# SPDX-License-Identifier: Apache-2.0
"""Calibrates a GPU's machine file on the GPU at hand: measures random products within a budget, then fits the constants (`gpu_fit`).

The kernels' efficiencies are not fitted: all machines of a compute capability share them. Machines differ in the costs of launches, blocks
and copies. Quality is reported before and after, and for each half of the products by a fit to the other half (`half_of`): the error to
expect on new products. Constants of a kernel family that no product used stay as they were. All others are replaced together, even those in
doubt, because they come from one joint fit.

Worked number: 60 s on an H100 measure about 100 products with four kernels each.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import msgspec
import numpy as np

from pysim.calibration.estimate import SURE, Estimate
from pysim.calibration.gpu_fit import Case, Known, Measured, Moved, errors_of, fit, half_of, predicted
from pysim.calibration.gpu_lab import problems
from pysim.errors import MachineError
from pysim.machine.gpu import Gpu
from pysim.machine.quantity import Number, Source, facts, with_sources
from pysim.registry.cuda import gemm_attributes

# Random products: seed, number of each type at most, kernels timed of each, multiply-adds at most
SEED, COUNT, TOP, MAX_MULTIPLY_ADDS = 77, 400, 4, 1e10
# L2's rate is fitted, too, since products reach another rate than a pure copy. H100, 128 products not fitted on: median error 6.9 %, 90th
# percentile 18.5 %; with the probe's rate 8.0 and 24.4 %.
MOVED = Moved(machine=("l2_bytes_per_second",))
MIN_PRODUCTS = 16
SOURCE = "products"


class Lab(Protocol):
    """Measures products."""

    def dtypes(self) -> tuple[str, ...]: ...
    def measure(self, text: str, top: int) -> Case | None: ...


class Quality(msgspec.Struct, frozen=True):
    """Median and 90th percentile of |log(predicted / measured)| over launches. Regret, the time of the launch predicted fastest over the
    fastest: geometric mean over problems, and the worst."""

    median_error: float
    p90_error: float
    regret: float
    worst_regret: float


class GpuFit(msgspec.Struct, frozen=True):
    """Constants by path in the machine file; quality with the file's constants (`before`), with the fitted ones (`after`), and of each half
    of the products by a fit to the other half (`left_out`)."""

    constants: dict[str, Estimate]
    before: Quality
    after: Quality
    left_out: Quality
    problems: int
    launches: int
    seconds: float


def calibrate(gpu: Gpu, lab: Lab, budget: float, tell: Callable[[str], None] = lambda text: None) -> GpuFit:
    """Measures products for `budget` seconds and fits. MachineError where too few could be measured."""
    cases, begin = list[Case](), perf_counter()
    for text in problems(lab.dtypes(), SEED, MAX_MULTIPLY_ADDS, COUNT):
        if perf_counter() - begin >= budget:
            break
        if case := lab.measure(text, TOP):
            cases.append(case)
        tell(f"{perf_counter() - begin:.0f} of {budget:g} s, {len(cases)} products")
    return fitted(gpu, cases, perf_counter() - begin)


def fitted(gpu: Gpu, cases: Sequence[Case], seconds: float = 0.0) -> GpuFit:
    """Fits the constants to measured products. MachineError where there are too few."""
    if len(cases) < MIN_PRODUCTS:
        raise MachineError(f"{len(cases)} products were measured and {MIN_PRODUCTS} are needed; give a larger --budget")
    known = gemm_attributes(gpu.capability_number)
    halves = [[case for case in cases if half_of(case.problem) == half] for half in (0, 1)]
    left_out = []
    for own, other in (halves, halves[::-1]):
        if own and other:
            left_out.append((other, moved_to(gpu, _constants(gpu, known, own))))
    constants = _constants(gpu, known, cases)
    after = moved_to(gpu, constants)
    return GpuFit(
        constants, quality([(cases, gpu)], known), quality([(cases, after)], known), quality(left_out, known),
        len(cases), sum(len(case.seconds) for case in cases), seconds,
    )  # fmt: skip


def _constants(gpu: Gpu, known: Known, cases: Sequence[Case]) -> dict[str, Estimate]:
    """Fitted constants by path, with their errors."""
    found = fit([Measured(gpu, cases)], known, MOVED)
    on = found.gpus[0]
    constants = dict[str, Estimate]()
    for name, error in found.errors.items():
        path = name if name in MOVED.machine else f"model.{name}" if name in MOVED.model else f"model.families.{name}"
        value = dict(facts(on))[path].value
        constants[path] = Estimate(value, error * value, f"{error:.0%} of error" if error > SURE else "")
    return constants


def quality(parts: Sequence[tuple[Sequence[Case], Gpu]], known: Known) -> Quality:
    """Prediction quality over several machines with their cases."""
    errors = np.abs(np.concatenate([errors_of(cases, on, known) for cases, on in parts]))
    regrets = [regret(case, predicted(case, on, known)) for cases, on in parts for case in cases]
    return Quality(
        float(np.median(errors)), float(np.quantile(errors, 0.9)), float(np.exp(np.mean(np.log(regrets)))), float(np.max(regrets))
    )


def regret(case: Case, seconds: Any) -> float:
    """Time of the launch predicted fastest over the fastest."""
    return float(case.seconds[int(np.argmin(seconds))] / case.seconds.min())


def moved_to(gpu: Gpu, constants: dict[str, Estimate]) -> Gpu:
    """The machine with these constants."""
    for path, one in constants.items():
        gpu = _replaced(gpu, path.split("."), one.number("fitted", SOURCE))
    return gpu


def _replaced(of: Any, path: Sequence[str], number: Number) -> Any:
    """A struct or dict with the number at `path` replaced."""
    name, *rest = path
    if isinstance(of, dict):
        return of | {name: _replaced(of[name], rest, number)}
    return msgspec.structs.replace(of, **{name: _replaced(getattr(of, name), rest, number) if rest else number})


def with_constants(gpu: Gpu, found: GpuFit, device: str, name: str) -> Gpu:
    """The machine with the fitted constants and their source: `device`, calibrated as the machine `name`."""
    left_out = found.left_out.median_error
    note = f"{found.problems} products, {found.launches} launches; median error of products left out of the fit {left_out:.1%}"
    source = Source(title=f"Least squares over products of an {device}", command=f"pysim machines calibrate -m {name}", note=note)
    machine: Gpu = with_sources(moved_to(gpu, found.constants), gpu.sources | {SOURCE: source})
    return machine
