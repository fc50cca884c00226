# SPDX-License-Identifier: Apache-2.0
"""The check that comes before a timing on a GPU: operands on the device, right results, and whether what a launch computes is one.

Ours, at the size that is timed. Exact fill: every element must equal that of plain loops in float64 on the device, bit for bit; picked
ones of those are checked against NumPy. Random fill: every element stays within gamma_k(u) |A||B| + u_C |want| (`cuda_fill.bound`) of
those loops, whose own u_C |want| is added, and picked ones of NumPy's float64; four times the first term for F(2x2), whose transforms
add. F(4x4), which has sixths, is held to an error of WINOGRAD_4 of the outputs' root mean square on both fills (ten times what a plain
F(4x4) in float32 makes). Others' convolutions: random fill, with NaN in every element before the run and none after it; those that
multiply matrices are held to the bound above at picked elements, those that transform their operands (FFT, Winograd, whatever PyTorch
takes) have no such bound, so to TRANSFORMED of the results' root mean square.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from pysim.algorithms.gpu.winograd import WINOGRAD_4
from pysim.check.cuda_fill import RESULT_DTYPES, RESULT_UNIT, Array, Fill, bound, decode, encode, exact_fill, random_fill, rounded
from pysim.check.reference import PICKED_PRODUCTS
from pysim.errors import PysimError
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuConvSchedule, GpuSchedule
from pysim.registry.rows import conv_kernel, conv_kernels, gemm_kernels
from pysim.runtime import cuda, cuda_conv

PICKED_ROWS, PICKED_WINDOWS = 256, 256
CHUNK_ELEMENTS = 1 << 22  # compared at a time
EXACT_GROWTH = 36  # sums of F(2x2) on their way: 2.25 of the filter's transform, 4 of the patch's, 9 planes, in quarters, over 9 products
TRANSFORMED = {"f32": 1e-3, "tf32": 0.1, "f16": 0.1, "bf16": 0.5}
_IN_MEMORY = {"f8": "u8", "tf32": "f32"}  # how elements lie where they are not of the type by which they are multiplied


class Bench(ABC):
    """The operands of one problem on the device, twice, and what the check needs; schedules are checked and timed on it.

    `lead`: whether the device is to be kept busy before a timed call, as it was when the constants of such predictions were fitted.
    """

    lead: ClassVar[bool]
    k: int  # products in an element

    def __init__(self, workload: Gemm | Conv, shapes: Sequence[tuple[int, ...]], lies: tuple[int, ...], growth: int, seed: int) -> None:
        self.result = cuda.result_of(workload.dtype)
        self.dtype = workload.dtype
        self._text = workload.text
        self.exact = [exact_fill(shape, self.k * growth, self.dtype, seed + i) for i, shape in enumerate(shapes)]
        self.random = [random_fill(shape, self.dtype, seed + 2 + i) for i, shape in enumerate(shapes)]
        self._exact_at, self._random_at = ([self._sent(fill) for fill in fills] for fills in (self.exact, self.random))
        self.out = cuda.DeviceArray(lies, self.result)
        self._wanted: Array | None = None
        self._everywhere: tuple[Array, Array] | None = None

    @abstractmethod
    def launch(self, schedule: Any, exact: bool = False) -> Any:
        """A launch on the random operands, or on the exact ones."""

    @abstractmethod
    def any_schedule(self) -> Any:
        """A launch is made of one, also where the reference runs instead."""

    @abstractmethod
    def at_picked(self, found: Array) -> Array:
        """The picked elements of a result."""

    @abstractmethod
    def in_float64(self, fills: list[Fill]) -> tuple[Array, Array]:
        """(A B, |A||B|) at the picked elements."""

    def lying(self, stored: Array) -> Array:
        """An operand as the device's memory holds it."""
        return stored

    def _sent(self, fill: Fill) -> cuda.DeviceArray:
        lies = self.lying(fill.stored)
        return cuda.DeviceArray(lies.shape, _IN_MEMORY.get(self.dtype, self.dtype)).fill(lies)

    def pointers(self, exact: bool = False) -> tuple[int, int, int]:
        first, second = self._exact_at if exact else self._random_at
        return first.pointer, second.pointer, self.out.pointer

    def poison(self) -> None:
        """The result is NaN (of int32: a number that no sum is) until it is written."""
        self.out.fill(np.full(self.out.nbytes, 0xFF, np.uint8))

    def read(self) -> Array:
        return self.out.read(np.empty(self.out.shape, RESULT_DTYPES[self.result]))

    def wanted(self) -> Array:
        """The exact fill's result by plain loops on the device, checked against NumPy; PysimError where those two differ."""
        if self._wanted is None:
            self.poison()
            self.launch(self.any_schedule(), exact=True).reference()
            found, (want, _) = self.read(), self.in_float64(self.exact)
            if not np.array_equal(decode(self.at_picked(found), self.result), rounded(want, self.result)):
                raise PysimError(f"{self._text}: the plain loops on the device do not give NumPy's result; nothing is timed")
            self._wanted = found
        return self._wanted

    def everywhere(self) -> tuple[Array, Array]:
        """(A B, |A||B|) of the random fill at every element, by plain loops on the device, as the result's type holds them."""
        if self._everywhere is None:
            launch, found = self.launch(self.any_schedule()), []
            for sign in (np.abs, np.positive):  # the operands as they are last, and there they stay
                for array, fill in zip(self._random_at, self.random, strict=True):
                    array.fill(self.lying(encode(sign(fill.values), self.dtype)))
                self.poison()
                launch.reference()
                found.append(self.read())
            self._everywhere = found[1], found[0]
        return self._everywhere

    def _outside(self, found: Array, growth: float) -> str:
        """How many elements of the random fill's result are farther from the device's plain loops than both round, if any."""
        want, scale = (whole.reshape(-1) for whole in self.everywhere())
        outside, got = 0, found.reshape(-1)
        for at in range(0, got.size, CHUNK_ELEMENTS):
            x, y, z = (decode(whole[at : at + CHUNK_ELEMENTS], self.result) for whole in (got, want, scale))
            loops = RESULT_UNIT.get(self.result, 0.0) * np.abs(y)  # 0 of s32, which nothing rounds
            outside += int(np.count_nonzero(~(np.abs(x - y) <= bound(self.dtype, self.result, self.k, y, z, growth) + loops)))
        return f"random fill: {outside} of {got.size} elements are out of bounds" * bool(outside)

    def check(self, run: Callable[[bool], object], kernel: str = "") -> tuple[str, float]:
        """(what is wrong or "", largest |got - want| / |A||B| on random operands) of what `run(exact)` computes, by a kernel of ours."""
        row = conv_kernel(kernel) if kernel else None
        outputs = row.outputs if row else 1  # of Winograd
        wanted = self.wanted()
        self.poison()
        run(True)
        found = self.read()
        if outputs <= 2 and not np.array_equal(found, wanted):
            bad = np.argwhere(found != wanted)
            where = tuple(map(int, bad[0]))
            first = f"the first at {where} is {found[where]}, right is {wanted[where]}"
            return f"exact fill: {len(bad)} of {found.size} elements are wrong, {first}", math.nan
        if outputs > 2 and (reason := _close(decode(found, self.result), decode(wanted, self.result))):
            return f"whole numbers: {reason}", math.nan
        self.poison()
        run(False)
        found = self.read()
        got, (want, scale) = decode(self.at_picked(found), self.result), self.in_float64(self.random)
        difference = np.abs(got - want)
        error = float(np.max(difference / np.maximum(scale, 1e-300)))
        if outputs > 2:
            reason = _close(got, want) or _close(decode(found, self.result), decode(self.everywhere()[0], self.result))
            return f"random fill: {reason}" * bool(reason), error
        growth = 4 if outputs > 1 else 1
        outside = np.count_nonzero(~(difference <= bound(self.dtype, self.result, self.k, want, scale, growth)))
        if outside:
            return f"random fill: {outside} of {got.size} checked elements are out of bounds", error
        return self._outside(found, growth), error


def _close(got: Array, want: Array) -> str:
    """What is wrong with F(4x4)'s result, if anything."""
    allowed = WINOGRAD_4 * math.sqrt(float(np.mean(want.astype(np.float64) ** 2)))
    outside = int(np.count_nonzero(~(np.abs(got - want) <= allowed)))
    return f"{outside} of {got.size} elements differ by more than {WINOGRAD_4:g} of the root mean square" if outside else ""


def _unwritten(found: Array, result: str) -> str:
    """How many elements of a whole result are not finite, if any."""
    bad = (found & 0x7F80) == 0x7F80 if result == "bf16" else ~np.isfinite(found)
    count = int(np.count_nonzero(bad))
    return f"{count} of {found.size} elements are not written or not finite" if count else ""


# Matrix products


class ProductBench(Bench):
    """`Bench` of a matrix product; whole rows are picked."""

    lead = False

    def __init__(self, workload: Gemm, seed: int = 0) -> None:
        w = self.workload = workload
        self.k = w.k
        rows = max(1, min(w.m, PICKED_PRODUCTS // (w.k * w.n)))
        self.picked = np.unique(np.linspace(0, w.m - 1, min(rows, PICKED_ROWS)).astype(np.int64))
        shapes = ((w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n))
        super().__init__(w, shapes, (w.m, w.n), 1, seed)

    def launch(self, schedule: GpuSchedule, exact: bool = False) -> cuda.Launch:
        return cuda.Launch(self.workload, schedule, self.pointers(exact), result=self.result)

    def any_schedule(self) -> GpuSchedule:
        return GpuSchedule(next(row.name for row in gemm_kernels() if row.dtype == self.dtype), "data_parallel", 1, False, 1)

    def at_picked(self, found: Array) -> Array:
        return found[self.picked]

    def in_float64(self, fills: list[Fill]) -> tuple[Array, Array]:
        a, b = fills[0].values, fills[1].values
        rows = (a.T if self.workload.trans_a else a)[self.picked].astype(np.float64)
        columns = (b.T if self.workload.trans_b else b).astype(np.float64)
        return rows @ columns, np.abs(rows) @ np.abs(columns)


# Convolutions


def in_float64(w: Conv, x: Array, filters: Array, picked: Array) -> tuple[Array, Array]:
    """(the convolution, that of absolute values) as [window][filter], at windows numbered (image, row, column); x N C H W."""
    image, window = np.divmod(picked, w.windows)
    row, column = np.divmod(window, w.out_w)
    taps = np.zeros((len(picked), w.channels, w.kernel_h, w.kernel_w))
    for r in range(w.kernel_h):
        for s in range(w.kernel_w):
            y = row * w.stride_h + r * w.dilation_h - w.pad_top
            z = column * w.stride_w + s * w.dilation_w - w.pad_left
            inside = np.flatnonzero((y >= 0) & (y < w.height) & (z >= 0) & (z < w.width))
            taps[inside, :, r, s] = x[image[inside], :, y[inside], z[inside]]
    a = taps.reshape(len(picked), w.groups, -1).transpose(1, 0, 2)
    b = filters.astype(np.float64).reshape(w.groups, w.filters // w.groups, -1).transpose(0, 2, 1)
    want, scale = (np.matmul(one, other).transpose(1, 0, 2).reshape(len(picked), -1) for one, other in ((a, b), (np.abs(a), np.abs(b))))
    return want, scale


class Windows:
    """Windows of all images of a convolution, borders among them: what they are of random operands, and whether a result is that.

    The workload's type is the one by which elements are multiplied ("tf32" of float32 in memory).
    """

    def __init__(self, w: Conv, fills: Sequence[Fill], count: int = PICKED_WINDOWS) -> None:
        self.workload, total = w, w.batch * w.windows
        self.picked = np.unique(np.linspace(0, total - 1, min(total, count)).astype(np.int64))
        self.want, self.scale = in_float64(w, fills[0].values, fills[1].values, self.picked)

    def of(self, found: Array, layout: str) -> Array:
        """[window][filter] of a result as memory holds it."""
        w = self.workload
        if layout == "nhwc":
            return found.reshape(-1, w.filters)[self.picked]
        image, window = np.divmod(self.picked, w.windows)
        taken: Array = found.reshape(w.batch, w.filters, w.windows)[image, :, window]
        return taken

    def verdict(self, found: Array, layout: str, transforms: bool) -> tuple[str, float]:
        """(what is wrong or "", largest |got - want| / |A||B|) of somebody's whole result as memory holds it."""
        w, result = self.workload, cuda.result_of(self.workload.dtype)
        if reason := _unwritten(found, result):
            return reason, math.nan
        difference = np.abs(decode(self.of(found, layout), result) - self.want)
        allowed = bound(w.dtype, result, w.channels // w.groups * w.kernel_h * w.kernel_w, self.want, self.scale)
        if transforms:
            allowed = np.maximum(allowed, TRANSFORMED[w.dtype] * math.sqrt(float(np.mean(self.want**2))))
        outside = int(np.count_nonzero(~(difference <= allowed)))
        error = float(np.max(difference / np.maximum(self.scale, 1e-300)))
        return f"{outside} of {difference.size} checked elements are out of bounds" * bool(outside), error


class ConvBench(Bench):
    """`Bench` of a convolution whose operands lie in a layout."""

    lead = True

    def __init__(self, workload: Conv, seed: int = 0, layout: str = "nchw") -> None:
        w = self.workload = workload
        self.k, self.layout = w.channels // w.groups * w.kernel_h * w.kernel_w, layout
        shapes = ((w.batch, w.channels, w.height, w.width), (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w))
        super().__init__(w, shapes, cuda_conv.lying(w, layout), EXACT_GROWTH if w.dtype == "f32" else 1, seed)
        self.windows = Windows(w, self.random)

    def lying(self, stored: Array) -> Array:
        return np.ascontiguousarray(stored.transpose(cuda_conv.PERMUTED) if self.layout == "nhwc" else stored)

    def launch(self, schedule: GpuConvSchedule, exact: bool = False) -> cuda_conv.Launch:
        return cuda_conv.Launch(self.workload, schedule, self.pointers(exact), layout=self.layout, result=self.result)

    def any_schedule(self) -> GpuConvSchedule:
        any_kernel = next(row.name for row in conv_kernels() if row.dtype == self.dtype and not row.makes_product)
        return GpuConvSchedule(any_kernel, None, "data_parallel", 1, False, 1)

    def at_picked(self, found: Array) -> Array:
        return self.windows.of(found, self.layout)

    def in_float64(self, fills: list[Fill]) -> tuple[Array, Array]:
        if fills is self.random:
            return self.windows.want, self.windows.scale
        return in_float64(self.workload, fills[0].values, fills[1].values, self.windows.picked)

    def check_theirs(self, call: Callable[[], object], transforms: bool) -> tuple[str, float]:
        """`check` of somebody else's convolution of the random operands into `out`."""
        self.poison()
        call()
        cuda.synchronize()
        return self.windows.verdict(self.read(), self.layout, transforms)
