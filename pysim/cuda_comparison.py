# SPDX-License-Identifier: Apache-2.0
"""Predicted beside measured beside cuBLAS on this computer's GPU: each plan is checked, then timed with its rivals, then stored.

Check. Exact fill: operands are small integers, so that all partial sums are exact in the accumulators and every element must equal that
of plain loops in float64 on the device, bit for bit; rows of those loops are checked against NumPy's float64 product. Random fill:
uniform in [-1, 1) as the type holds it; on picked rows |got - want| <= gamma_{k}(u) |A||B| + u_C |want|, u the accumulators' unit
roundoff (tensor cores may truncate, so twice that; FP8 sums keep 13 bits) and u_C the result's. Outputs start as NaN patterns.

Time. Contenders take turns, one sample each per round, a pair of events around each, operands in L2 as the run before left them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim import cuda, cuda_peers
from pysim.comparison import OURS, keep, ratio
from pysim.cuda import DeviceArray, Launch
from pysim.errors import MissingError, PlanError, PysimError
from pysim.machine import Gpu
from pysim.measure import quartiles
from pysim.record import Comparison, Cost
from pysim.registry import gemm_kernels
from pysim.schedule import GpuSchedule
from pysim.store import Store
from pysim.verify import PICKED_PRODUCTS
from pysim.workload import Gemm, Layer

if TYPE_CHECKING:
    from pysim.planner import Plan

Array = NDArray[Any]
Planned = tuple[Layer, "Plan | PlanError"]

WARMUPS, FEWEST_ROUNDS, MOST_ROUNDS = 3, 30, 1000
_STORED = {"f32": np.float32, "tf32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "s8": np.int8, "f8": np.uint8}
RESULT_DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "s32": np.int32}
UNIT = {"f64": 2.0**-53, "f8": 2.0**-14}  # of sums; 2^-23 for the others: 2^-24, and as much for truncation
RESULT_UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
_LARGEST = {"f16": 3, "bf16": 3, "f8": 1, "s8": 7}  # of exact fill: sums stay within what results and accumulators hold


class Fill(NamedTuple):
    """An operand as memory holds it, and its values."""

    stored: Array
    values: Array


def encode(values: Array, dtype: str) -> Array:
    """Values that a type holds exactly, as memory holds them: bfloat16 and FP8 (e4m3) as bits."""
    if dtype == "bf16":
        bits: Array = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits
    if dtype == "f8":
        finite = e4m3()[:127]
        index = np.searchsorted(finite, np.abs(values))
        code: Array = (index + 128 * np.signbit(values)).astype(np.uint8)
        return code
    return np.ascontiguousarray(values, _STORED[dtype])


def decode(stored: Array, result: str) -> Array:
    """The float64 values of a result."""
    if result == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def e4m3() -> Array:
    """Values of the FP8 codes 0..127 (OCP 8-bit floating point, E4M3): 4 bits of exponent with bias 7, 3 of mantissa; 127 is NaN."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    values: Array = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return values


def random_fill(shape: tuple[int, ...], dtype: str, seed: int) -> Fill:
    """Uniform in [-1, 1), as far as the type has such numbers; whole numbers -127..127 of int8."""
    draw = np.random.default_rng(seed)
    if dtype == "s8":
        whole = draw.integers(-127, 128, shape, np.int8)
        return Fill(whole, whole)
    values: Array = draw.random(shape, np.float64 if dtype == "f64" else np.float32) * 2 - 1
    if dtype == "f16":
        values = values.astype(np.float16)
    elif dtype in ("bf16", "tf32"):
        kept = 0xFFFF0000 if dtype == "bf16" else 0xFFFFE000
        values = (values.view(np.uint32) & np.uint32(kept)).view(np.float32)
    elif dtype == "f8":
        grid = e4m3()[:57]  # up to 1
        values = np.sign(values) * grid[np.minimum(np.searchsorted(grid, np.abs(values)), 56)]
    return Fill(encode(values, dtype), values)


def exact_fill(shape: tuple[int, ...], k: int, dtype: str, seed: int) -> Fill:
    """Whole numbers of magnitude 1..a, both signs, such that sums of k products are exact."""
    largest = max(1, min(_LARGEST.get(dtype, 31), math.isqrt(2**24 // k)))
    draw = np.random.default_rng(seed)
    whole = draw.integers(1, largest + 1, shape, np.int8) * (1 - 2 * draw.integers(0, 2, shape, np.int8))
    return Fill(encode(whole.astype(np.float64 if dtype == "f64" else np.float32), dtype), whole)


class Bench:
    """The operands of one product on the device, and what the check needs; schedules are checked and timed on it."""

    def __init__(self, workload: Gemm, seed: int = 0) -> None:
        w = self.workload = workload
        self.result = cuda.result_of(w.dtype)
        self._shapes = ((w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n))
        self.exact = [exact_fill(shape, w.k, w.dtype, seed + i) for i, shape in enumerate(self._shapes)]
        self.random = [random_fill(shape, w.dtype, seed + 2 + i) for i, shape in enumerate(self._shapes)]
        kind = "u8" if w.dtype == "f8" else "f32" if w.dtype == "tf32" else w.dtype
        self.exact_at = [DeviceArray(fill.stored.shape, kind).fill(fill.stored) for fill in self.exact]
        self.random_at = [DeviceArray(fill.stored.shape, kind).fill(fill.stored) for fill in self.random]
        self.c = DeviceArray((w.m, w.n), self.result)
        rows = max(1, min(w.m, PICKED_PRODUCTS // (w.k * w.n)))
        self.picked = np.unique(np.linspace(0, w.m - 1, min(rows, 256)).astype(np.int64))
        self._wanted: Array | None = None

    def launch(self, schedule: GpuSchedule, exact: bool = False) -> Launch:
        a, b = self.exact_at if exact else self.random_at
        return Launch(self.workload, schedule, (a.pointer, b.pointer, self.c.pointer), result=self.result)

    def poison(self) -> None:
        """The result is NaN (of int32: a number that no sum is) until it is written."""
        self.c.fill(np.full(self.c.nbytes, 0xFF, np.uint8))

    def read(self) -> Array:
        return self.c.read(np.empty(self.c.shape, RESULT_DTYPES[self.result]))

    def _want(self, fills: list[Fill]) -> tuple[Array, Array]:
        """(A B, |A||B|) in float64 on the picked rows."""
        a, b = fills[0].values, fills[1].values
        rows = (a.T if self.workload.trans_a else a)[self.picked].astype(np.float64)
        columns = (b.T if self.workload.trans_b else b).astype(np.float64)
        return rows @ columns, np.abs(rows) @ np.abs(columns)

    def wanted(self) -> Array:
        """The exact fill's result by plain loops on the device, checked against NumPy; PysimError where those two differ."""
        if self._wanted is None:
            first = GpuSchedule(_any_kernel(self.workload.dtype), "data_parallel", 1, False, 1)
            self.poison()
            self.launch(first, exact=True).reference()
            found, (want, _) = self.read(), self._want(self.exact)
            if not np.array_equal(decode(found[self.picked], self.result), rounded(want, self.result)):
                raise PysimError(f"{self.workload.text}: the plain loops on the device do not give NumPy's product; nothing is timed")
            self._wanted = found
        return self._wanted

    def check(self, run: Callable[[bool], None]) -> tuple[str, float]:
        """(what is wrong or "", largest |got - want| / |A||B| on random operands) of what `run(exact)` computes."""
        wanted = self.wanted()
        self.poison()
        run(True)
        found = self.read()
        if not np.array_equal(found, wanted):
            bad = np.argwhere(found != wanted)
            where = tuple(map(int, bad[0]))
            first = f"the first at {where} is {found[where]}, right is {wanted[where]}"
            return f"exact fill: {len(bad)} of {found.size} elements are wrong, {first}", math.nan
        self.poison()
        run(False)
        got, (want, scale) = decode(self.read()[self.picked], self.result), self._want(self.random)
        unit = UNIT.get(self.workload.dtype, 2.0**-23) * self.workload.k
        bound = 0 if self.result == "s32" else unit / (1 - min(0.5, unit)) * scale + RESULT_UNIT.get(self.result, 2.0**-24) * np.abs(want)
        difference = np.abs(got - want)
        error = float(np.max(difference / np.maximum(scale, 1e-300)))
        if not (difference <= bound).all():
            return f"random fill: {np.count_nonzero(~(difference <= bound))} of {got.size} checked elements are out of bounds", error
        return "", error


def _any_kernel(dtype: str) -> str:
    """A kernel of a type: a launch is made of one, also where the reference runs instead."""
    return next(row.name for row in gemm_kernels() if row.dtype == dtype)


def rounded(values: Array, result: str) -> Array:
    """float64 values as a result's type holds them."""
    if result == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return decode(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16), "bf16")
    return values.astype(RESULT_DTYPES[result]).astype(np.float64)


def compare(
    planned: Iterable[Planned],
    gpu: Gpu,
    *,
    peers: bool = False,
    store: Store | None = None,
    budget_seconds: float = 30.0,
    min_seconds: float = 0.2,
    seed: int = 0,
) -> Iterator[Comparison]:
    """Check and time the plan of each layer beside cuBLAS, with `peers` beside nvidia-matmul-heuristics' estimate too.

    Yields each layer as soon as it is done; one that cannot be run gives a Comparison that is not correct, with the reason.
    MissingError (no library, driver or device) ends the iteration.
    """
    cuda.devices()
    for layer, plan in planned:
        try:
            if isinstance(plan, PlanError):
                raise plan
            done = _measure(layer, plan, gpu, peers, store, budget_seconds, min_seconds, seed)
        except MissingError:
            raise
        except (PysimError, MemoryError) as error:
            reason = str(error) or "out of memory"
            done = _comparison(layer, gpu, plan={}, correct=False, reason=reason)
        yield done


def _comparison(layer: Layer, gpu: Gpu, **fields: Any) -> Comparison:
    return Comparison(problem=layer.workload.text, label=layer.label, count=layer.count, machine=gpu.name, **fields)


def _measure(
    layer: Layer, plan: "Plan", gpu: Gpu, peers: bool, store: Store | None, budget_seconds: float, min_seconds: float, seed: int
) -> Comparison:
    w, schedule = layer.workload, plan.schedule
    if not (isinstance(w, Gemm) and isinstance(schedule, GpuSchedule) and isinstance(plan.cost, Cost)):
        raise PlanError(f"{w.text}: only matrix products are run on a GPU")
    bench = Bench(w, seed)
    launches = {exact: bench.launch(schedule, exact) for exact in (True, False)}
    wrong, error = bench.check(lambda exact: launches[exact].run())
    fields: dict[str, Any] = {"plan": plan.to_dict(), "predicted_seconds": plan.cost.seconds}
    fields["max_error"] = error if math.isfinite(error) else None
    if wrong:
        return _comparison(layer, gpu, correct=False, reason=f"failed: {wrong}", **fields)
    contenders: dict[str, Callable[[], None]] = {OURS: launches[False].run}
    missing, versions = _add_cublas(bench, contenders)
    samples = interleave(contenders, min_seconds, budget_seconds)
    if store is not None:
        keep(store, w, plan, gpu, "hot", 1, samples, versions)
    times = {name: quartiles(values) for name, values in samples.items()}
    return _comparison(
        layer,
        gpu,
        correct=True,
        measured_seconds=times[OURS][1],
        samples=len(samples[OURS]),
        peers={name: middle for name, (_, middle, _) in times.items() if name != OURS},
        ratios={name: ratio(values, samples[OURS]) for name, values in samples.items() if name != OURS},
        quartiles=times,
        estimates=_estimates(w, gpu, missing, versions) if peers else {},
        missing=missing,
        versions=versions,
        **fields,
    )


def _add_cublas(bench: Bench, contenders: dict[str, Callable[[], None]]) -> tuple[dict[str, str], dict[str, str]]:
    """Adds cuBLAS where it is here and right; (why not, versions)."""
    try:
        calls = {}
        for exact, at in ((True, bench.exact_at), (False, bench.random_at)):
            pointers = (at[0].pointer, at[1].pointer, bench.c.pointer)
            calls[exact], version = cuda_peers.cublas(bench.workload, bench.result, pointers)
        wrong, _ = bench.check(lambda exact: calls[exact]())
    except MissingError as error:
        return {"cublas": str(error)}, {}
    if wrong:
        return {"cublas": f"its result is wrong: {wrong}"}, {}
    contenders["cublas"] = calls[False]
    return {}, {"cublas": version}


def _estimates(w: Gemm, gpu: Gpu, missing: dict[str, str], versions: dict[str, str]) -> dict[str, float]:
    name = "matmul_heuristics"
    try:
        found = {name: cuda_peers.estimate(w, gpu.name)}
    except MissingError as error:
        missing[name] = str(error)
        return {}
    versions[name] = cuda_peers.heuristics_version()
    return found


def interleave(contenders: dict[str, Callable[[], None]], min_seconds: float, budget_seconds: float) -> dict[str, NDArray[np.float64]]:
    """Device seconds of each contender, round by round, the order shifting by one each round."""
    events, names = cuda_peers.Events(), list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(WARMUPS):
        for call in contenders.values():
            call()
    spent = 0.0
    for turn in range(MOST_ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(events.seconds(contenders[name]))
        spent += sum(samples[name][-1] for name in names)
        if (turn + 1 >= FEWEST_ROUNDS and spent >= min_seconds * len(names)) or spent >= budget_seconds:
            break
    return {name: np.array(values) for name, values in samples.items()}
