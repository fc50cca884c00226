# SPDX-License-Identifier: Apache-2.0
"""A GPU's constants from the GPU at hand: random products are measured until the budget is spent, then `gpu_fit` moves the constants.

The kernels' efficiencies stay those of the compute capability, which all machines of it share; what differs between two of them is how
launches, blocks and copies cost. Predictions are judged before and after, and on the half of the products that a fit to the other half
left out (`half_of`), which is what products to come may expect. A constant of a family of kernels that no product used stays what it was.
All others move together, those that are not sure, too: one fit found them beside one another.

Worked number: 60 s on an H100 are about 100 products of four kernels each.
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
from pysim.machine.quantity import Number, Source, facts
from pysim.registry.cuda import gemm_attributes

SEED, COUNT, TOP, MOST = 77, 400, 4, 1e10  # of the products: which, of each type at most, kernels of each, multiply-adds
# L2's rate, too: products do not take of it what a probe takes that does nothing else. H100, 128 products that a fit had not seen: 6.9 % off in
# the median, 18.5 % at the 90th percentile, from either start; beside the probe's rate 8.0 and 24.4 %.
MOVED = Moved(machine=("l2_bytes_per_second",))
FEWEST = 16  # products below which nothing is fitted
SOURCE = "products"


class Lab(Protocol):
    """Where products are measured."""

    def dtypes(self) -> tuple[str, ...]: ...
    def measure(self, text: str, top: int) -> Case | None: ...


class Quality(msgspec.Struct, frozen=True):
    """|log(predicted / measured)| of launches, median and 90th percentile; time of the launch predicted best over the best one's, geometric
    mean over problems and worst."""

    median_error: float
    p90_error: float
    regret: float
    worst_regret: float


class GpuFit(msgspec.Struct, frozen=True):
    """Constants by path in the machine's file; how well launches were predicted `before`, with the file's, and are `after`; `left_out`:
    each half by a fit to the other."""

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
    for text in problems(lab.dtypes(), SEED, MOST, COUNT):
        if perf_counter() - begin >= budget:
            break
        if case := lab.measure(text, TOP):
            cases.append(case)
        tell(f"{perf_counter() - begin:.0f} of {budget:g} s, {len(cases)} products")
    return fitted(gpu, cases, perf_counter() - begin)


def fitted(gpu: Gpu, cases: Sequence[Case], seconds: float = 0.0) -> GpuFit:
    """The constants that measured products say. MachineError where there are too few."""
    if len(cases) < FEWEST:
        raise MachineError(f"{len(cases)} products were measured and {FEWEST} are needed; give a larger --budget")
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
    """What a fit finds, and how sure each is."""
    found = fit([Measured(gpu, cases)], known, MOVED)
    on = found.gpus[0]
    constants = dict[str, Estimate]()
    for name, error in found.errors.items():
        path = name if name in MOVED.machine else f"model.{name}" if name in MOVED.model else f"model.families.{name}"
        value = dict(facts(on))[path].value
        constants[path] = Estimate(value, error * value, f"{error:.0%} of error" if error > SURE else "")
    return constants


def quality(parts: Sequence[tuple[Sequence[Case], Gpu]], known: Known) -> Quality:
    """How well machines predict their cases."""
    errors = np.abs(np.concatenate([errors_of(cases, on, known) for cases, on in parts]))
    regrets = [regret(case, predicted(case, on, known)) for cases, on in parts for case in cases]
    return Quality(
        float(np.median(errors)), float(np.quantile(errors, 0.9)), float(np.exp(np.mean(np.log(regrets)))), float(np.max(regrets))
    )


def regret(case: Case, seconds: Any) -> float:
    """The time of the launch predicted best over the best one's."""
    return float(case.seconds[int(np.argmin(seconds))] / case.seconds.min())


def moved_to(gpu: Gpu, constants: dict[str, Estimate]) -> Gpu:
    """The machine with these in its file."""
    for path, one in constants.items():
        number = Number(value=float(f"{one.value:.4g}"), kind="fitted", source=SOURCE, error=float(f"{one.error:.2g}"))
        gpu = _replaced(gpu, path.split("."), number)
    return gpu


def _replaced(of: Any, path: Sequence[str], number: Number) -> Any:
    """A struct or a table of them with a number in the place of the one at a path."""
    name, *rest = path
    if isinstance(of, dict):
        return of | {name: _replaced(of[name], rest, number)}
    return msgspec.structs.replace(of, **{name: _replaced(getattr(of, name), rest, number) if rest else number})


def with_constants(gpu: Gpu, found: GpuFit, device: str, name: str) -> Gpu:
    """The machine with what products said, and where that is from: `device`, calibrated as the machine `name`."""
    told = (
        f"{found.problems} products, {found.launches} launches; of those left out of the fit {found.left_out.median_error:.1%} off, median"
    )
    source = Source(title=f"Least squares over products of an {device}", command=f"pysim machines calibrate -m {name}", note=told)
    machine = msgspec.structs.replace(moved_to(gpu, found.constants), sources=gpu.sources | {SOURCE: source})
    used = {fact.source for _, fact in facts(machine)}
    return msgspec.structs.replace(machine, sources={key: one for key, one in machine.sources.items() if key in used})
