# SPDX-License-Identifier: Apache-2.0
"""How contenders are timed, what they are fed, and how their answers are judged.

Timing. All contenders run in one loop, one sample each per round, so that what disturbs the machine disturbs all of
them; the order shifts by one each round. A sample is the time of one call, or of a batch where a call is too short for
the clock. State "hot": an untimed call of the same contender precedes each sample, so the caches hold its own data,
not its rival's. State "cold": no such call, and the contender itself rotates over copies of its buffers that fill
twice the last-level cache (`rotating`, `copies_for`), so that it finds none of them in a cache.

Judging. Exact fill: integers of magnitude 1..a with k a^2 <= 2^24 (2^53 in double): each sum of k products and each of
its partial sums is an integer that the format holds, so every order of summation gives the same bits. Random fill:
uniform in [-1, 1), and |got - want| <= gamma_k |A||B|, gamma_k = k u / (1 - k u) (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 3.1). u is the result's: products of bf16 are exact in f32, only their sums are
rounded. s8 is exact on any fill: its random one is all of -128..127, and sums beyond int32 wrap.
Worked number: k = 576 in single precision: a = 31, gamma_k = 3.43e-5.
"""

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from pysim.errors import OperandError
from pysim.runtime.cpu import NUMPY_DTYPES, RESULT_DTYPES, aligned

State = Literal["hot", "cold"]
Array = NDArray[Any]

SHORT_CALL_SECONDS = 20e-6  # below this a sample is a batch
BATCH_SECONDS = 100e-6  # how long a batch should last: 1000 ticks of a 100 ns clock
FEWEST_ROUNDS, MOST_ROUNDS = 5, 1000  # even when the budget is spent; even when calls are short
LARGEST_FILL = 31  # enough to tell operands apart; larger numbers would only shrink the longest exact k
MOST_ZEROS = 0.3  # share of zero outputs above which a pass proves nothing

_EXACT = {"f32": 2**24, "f64": 2**53, "bf16": 2**24, "s8": 2**31 - 1}  # of the results
UNWRITTEN = -(2**31)  # what an s32 result starts as: no sum of an exact fill, nor of 131071 products of a random one


class Verdict(NamedTuple):
    """`error` is the largest |got - want| (NaN where an element is NaN); `reason` says what is wrong, and where."""

    status: Literal["passed", "failed", "mistrusted"]
    error: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether a time may be measured and shown."""
        return self.status == "passed"


# ------------------------------------------------------------------------------------------------------------- timing


@contextmanager
def pinned(threads: int = 1) -> Iterator[int | None]:
    """Keep the calling thread on the CPU that it runs on where `threads` is 1; its affinity is restored after."""
    if threads != 1 or not hasattr(os, "sched_setaffinity"):
        yield None
        return
    before = os.sched_getaffinity(0)
    cpu = _current_cpu(before)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)


def _current_cpu(allowed: set[int]) -> int:
    """Where the scheduler has put this thread: as a rule the least busy CPU. The last one where it does not say."""
    try:
        stat = Path("/proc/thread-self/stat").read_text()
        cpu = int(stat.rpartition(")")[2].split()[36])  # field 39 of proc(5); the name before it may hold spaces
    except (OSError, ValueError, IndexError):
        cpu = -1
    return cpu if cpu in allowed else max(allowed)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside a sample."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    min_samples: int = 30,
    min_seconds: float = 0.2,
    budget_seconds: float = 30.0,
    warmup_seconds: float = 0.02,
    state: State = "hot",
    threads: int = 1,
) -> dict[str, NDArray[np.float64]]:
    """Time all contenders in one run, round-robin: seconds per call, one array per contender, all of one length.

    Ends when each contender has `min_samples` samples that last `min_seconds` together (or MOST_ROUNDS of them), or
    when `budget_seconds` are spent and FEWEST_ROUNDS rounds are done; so an array shorter than `min_samples` says that
    the budget ran out. Sample i of one array and sample i of another are neighbours in time. Raises OperandError for
    an unknown state or no contender.
    """
    if state not in get_args(State):
        raise OperandError(f"cache state {state!r} is unknown; it is 'hot' or 'cold'")
    if not contenders:
        raise OperandError("there is nothing to time: give at least one contender")
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    spent = dict.fromkeys(contenders, 0.0)
    with pinned(threads), _no_collection():
        batches = {name: _warm_up(call, warmup_seconds) for name, call in contenders.items()}
        names = list(contenders)
        start = time.perf_counter()
        for turn in itertools.count():
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                if state == "hot":
                    contenders[name]()
                seconds = _sample(contenders[name], batches[name])
                samples[name].append(seconds / batches[name])
                spent[name] += seconds
            rounds = turn + 1
            if rounds >= min_samples and (min(spent.values()) >= min_seconds or rounds >= MOST_ROUNDS):
                break
            if rounds >= FEWEST_ROUNDS and time.perf_counter() - start >= budget_seconds:
                break
    return {name: np.array(times) for name, times in samples.items()}


def _sample(call: Callable[[], object], batch: int) -> float:
    """Seconds of `batch` calls."""
    if batch == 1:
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) * 1e-9
    turns = itertools.repeat(None, batch)
    start = time.perf_counter_ns()
    for _ in turns:
        call()
    return (time.perf_counter_ns() - start) * 1e-9


def _warm_up(call: Callable[[], object], seconds: float) -> int:
    """Call until `seconds` have passed, at least three times; the batch that its fastest call asks for."""
    start = time.perf_counter()
    fastest = _sample(call, 1)
    for turn in itertools.count():
        if turn >= 2 and time.perf_counter() - start >= seconds:
            break
        fastest = min(fastest, _sample(call, 1))
    return 1 if fastest >= SHORT_CALL_SECONDS else math.ceil(BATCH_SECONDS / max(fastest, 1e-9))


def copies_for(bytes_per_call: int, last_level_bytes: int) -> int:
    """How many copies of a call's buffers fill twice the last-level cache; at least two."""
    return max(2, -(-2 * last_level_bytes // max(1, bytes_per_call)))


def rotating(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """One callable that makes `calls` in turn, each with its own buffers: the "cold" form of a contender.

    Each is called once here, so that first touches and lazy set-up lie outside every sample.
    """
    for call in calls:
        call()
    turn = itertools.cycle(calls)
    return lambda: next(turn)()


# --------------------------------------------------------------------------------------------------------- statistics


def quartiles(samples: Array) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def ratio_interval(
    numerator: Array, denominator: Array, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of median(numerator) / median(denominator), both from one `interleave`.

    Rounds are resampled, so a slow moment that hit both contenders of a round stays a pair (percentile bootstrap,
    Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3). Raises OperandError where the arrays do not
    pair up.
    """
    if numerator.shape != denominator.shape or numerator.ndim != 1 or not numerator.size:
        raise OperandError(f"samples of shapes {numerator.shape} and {denominator.shape} do not pair up by round")
    draw = np.random.default_rng(seed)
    ratios = np.empty(resamples)
    step = max(1, (1 << 20) // numerator.size)
    for first in range(0, resamples, step):
        rounds = draw.integers(0, numerator.size, (min(step, resamples - first), numerator.size))
        medians = np.median(numerator[rounds], axis=1) / np.median(denominator[rounds], axis=1)
        ratios[first : first + step] = medians
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


# ----------------------------------------------------------------------------------------------------- fills and checks


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype for a problem's; raises OperandError for one that nothing here computes in."""
    if name not in NUMPY_DTYPES:
        raise OperandError(f"dtype {name!r} cannot be measured here; these can: {', '.join(NUMPY_DTYPES)}")
    return cast("np.dtype[Any]", NUMPY_DTYPES[name])


def result_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype for the results of a problem's dtype; errors as `dtype_of`."""
    dtype_of(name)
    return cast("np.dtype[Any]", RESULT_DTYPES[name])


def to_bf16(numbers: Array) -> Array:
    """float32 numbers cut to bf16, as uint16."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def numbers_of(operand: Array, dtype: str) -> Array:
    """The numbers that an operand stands for, in a float dtype that holds the sums of an exact fill too."""
    if dtype == "bf16":
        return (operand.astype(np.uint32) << 16).view(np.float32)
    return operand.astype(np.float64) if dtype == "s8" else operand


def result_from(sums: Array, dtype: str) -> Array:
    """Sums as a problem's results: those of s8 are whole and wrap to int32."""
    return sums.astype(np.int64).astype(np.int32) if dtype == "s8" else sums


def unwritten(shape: tuple[int, ...], dtype: str) -> Array:
    """An output buffer that holds NaN (s32: UNWRITTEN), so that an element nobody writes fails every check."""
    out = aligned(shape, result_of(dtype))
    out.fill(np.nan if out.dtype.kind == "f" else UNWRITTEN)
    return out


def exact_fill(shape: tuple[int, ...], k: int, dtype: str = "f32", seed: int = 0) -> Array:
    """Integers of magnitude 1..a, both signs: sums of `k` products of two such numbers are exact in any order.

    None is zero, so that an operand that is skipped changes the sum. Raises OperandError where no a does it (k > 2^24).
    """
    kind = dtype_of(dtype)
    largest = min(LARGEST_FILL, math.isqrt(_EXACT[dtype] // k)) if k > 0 else 0
    if largest == 0:
        raise OperandError(f"sums of {k} products cannot be exact in {dtype}: k must lie in 1..{_EXACT[dtype]}")
    draw = np.random.default_rng(seed)
    out = aligned(shape, np.float32 if dtype == "bf16" else kind)
    np.multiply(draw.integers(1, largest + 1, shape, np.int8), 1 - 2 * draw.integers(0, 2, shape, np.int8), out=out, dtype=out.dtype)
    return _stored(out, dtype)


def random_fill(shape: tuple[int, ...], dtype: str = "f32", seed: int = 0) -> Array:
    """Uniform in [-1, 1); s8: in -128..127."""
    kind = dtype_of(dtype)
    draw = np.random.default_rng(seed)
    out = aligned(shape, np.float32 if dtype == "bf16" else kind)
    if dtype == "s8":
        out[...] = draw.integers(-128, 128, shape, np.int8)
        return out
    draw.random(shape, dtype=out.dtype.type, out=out)
    out *= 2
    out -= 1
    return _stored(out, dtype)


def _stored(numbers: Array, dtype: str) -> Array:
    """A fill as the operand that carries it."""
    if dtype != "bf16":
        return numbers
    out = aligned(numbers.shape, dtype_of(dtype))
    out[...] = to_bf16(numbers)
    return out


def gamma(k: int, dtype: str) -> float:
    """gamma_k = k u / (1 - k u), u the unit roundoff: the componentwise bound of a sum of k products in any order; s8: 0."""
    kind = result_of(dtype)
    if kind.kind != "f":
        return 0.0
    unit = float(np.finfo(kind).eps) / 2
    if k * unit >= 1:
        raise OperandError(f"no error bound holds for sums of {k} products in {dtype}")
    return k * unit / (1 - k * unit)


def check_exact(got: Array, want: Array) -> Verdict:
    """Every element equals (the sign of zero aside), none is NaN, and not too many are zero."""
    return _judge(got, want, ~(got == want) if got.shape == want.shape else None)


def check_bound(got: Array, want: Array, bound: Array | float) -> Verdict:
    """Every |got - want| is at most `bound` (NaN and infinity are not), and not too many outputs are zero."""
    if got.shape != want.shape:
        return _judge(got, want, None)
    difference = _difference(got, want)
    return _judge(got, want, ~((difference <= bound) & (difference < np.inf)))


def _difference(got: Array, want: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        difference: Array = np.abs(got.astype(np.float64) - want)
    return difference


def _judge(got: Array, want: Array, bad: Array | None) -> Verdict:
    """The verdict that a mask of bad elements amounts to; None stands for shapes that differ."""
    if bad is None:
        return Verdict("failed", math.nan, f"the result has shape {got.shape}, right is {want.shape}")
    if not got.size:
        return Verdict("mistrusted", math.nan, "the result has no element, so nothing was checked")
    error = float(_difference(got, want).max())
    count = int(np.count_nonzero(bad))
    if count:
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        nans = int(np.count_nonzero(np.isnan(got) if got.dtype.kind == "f" else got == UNWRITTEN))
        unset = f", {nans} are NaN or were never written" if nans else ""
        first = f"the first at {where} is {got[where]!s}, right is {want[where]!s}"
        return Verdict("failed", error, f"{count} of {got.size} elements are wrong{unset}; {first}")
    zeros = (got.size - np.count_nonzero(got)) / got.size
    if zeros > MOST_ZEROS:
        return Verdict("mistrusted", error, f"{zeros:.0%} of the results are zero, so a pass proves little")
    return Verdict("passed", error)
