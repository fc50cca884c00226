# SPDX-License-Identifier: Apache-2.0
"""The expected time of a convolution or product in a graph that Inductor compiles, for the choice between it and a plan; nothing is timed.

    seconds = ((FLOP / peak / a)^3 + (bytes / bandwidth / b)^3)^(1/3) + t + pass
    pass    = launch + max(elements x cycles, (2 + residual) output bytes / bandwidth / share), if a bias, norm, activation or residual
              follows: Inductor fuses them into one kernel;
              2 residual output bytes / bandwidth, if what reads the result is computed in that kernel: then only the sum is written apart

cuDNN's and cuBLAS's kernels reach the shares a and b of the roofline, by kind of layer; products of a few rows take a launch and a time for
each product that a result sums. The constants are those of lab/fits/fit_compiler.py, rounded or between its fits as networks were added
(lab/data/h200/compiler-layers.jsonl: layers in Inductor's graphs of profiled networks; lab/data/h100 and h200: `conv-*`, `layers-*`,
`products-*`, batch 1 to 128, PyTorch 2.11, cuDNN 9.19). Median errors in graphs: 1x1 and dense convolutions 9 % in 16-bit types (185),
10 to 12 % in TF32 (91) and FP32, products 11 to 14 %, of 16-bit types in Inductor's graphs 7 % (16 products of four
transformers, all within 28 %); TF32's products have shares of cuBLAS's best kernels, so that most stay its own. Whole graphs of 15 networks
in float16 by Inductor alone were predicted within 8 % in the median.

Worked number: `conv:mb32ic64ih56oc256kh1:f16` moves 64 MB; at 0.93 of 4.8 TB/s 14 us, and 3.0 of launch; a norm and ReLU after it 50 more,
half a cycle of a multiprocessor for each of 25.7 million elements.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Plan
from pysim.torch.layers.conv_forms import Geometry
from pysim.torch.layers.expected_cpu import kind_of, work_of

MARGIN = 0.05  # by which a plan must win
# More where it makes no pass needless: two kernels' prices are within 10 %, and the compiler's graph has the library's in any case
BARE_MARGIN = 0.07
FOLDED_MARGIN = 0.08  # and a library's kernel whose weights were rounded once more, since errors grow with each such layer
# Squared errors of networks in float16 are mostly those of their weights' rounding, once where they become 16-bit numbers, and once more in
# folded layers: in ResNet-50 a layer's weights give 0.8 to 40 times the squared error of rounding its results, for these errors average out
# over pixels (lab/notebook/gpu-model.md). Where a share f was folded they were at most 1 + 1.8 f times the compiler's, about: f 0.20, 0.30
# and 0.42 (Wide ResNet-50), 0.33 (ResNet-34d), 0.24 and 0.5 (ResNet-50), errors 1.07, 1.26, 1.26, 1.21, 1.02, 1.17. They may be 1.2 times
_FOLDED_ERROR, _MOST_ERROR = 1.8, 1.2
FEW_CHANNELS = 8  # cuDNN has kernels of their own for images


class _Shares(NamedTuple):
    flops: float
    bytes: float
    launch: float


_SHARES = {  # by type and kind of layer
    "half": {
        "1x1": _Shares(0.66, 0.93, 3.0e-6),
        "dense": _Shares(0.69, 0.47, 7.3e-6),
        "few channels": _Shares(0.07, 0.36, 9.8e-6),
        "by channel": _Shares(0.18, 0.82, 5.5e-6),
        "by group": _Shares(0.16, 0.65, 4.2e-6),
        "product": _Shares(0.85, 0.80, 4.0e-6),
    },
    "tf32": {
        "1x1": _Shares(0.46, 0.84, 4.6e-6),
        "dense": _Shares(0.46, 0.52, 5.0e-6),
        "few channels": _Shares(0.11, 0.36, 12.0e-6),
        "by channel": _Shares(0.08, 1.00, 2.9e-6),
        "by group": _Shares(0.22, 0.99, 11.9e-6),
        "product": _Shares(0.75, 0.80, 6.0e-6),
    },
    "f32": {
        "1x1": _Shares(0.42, 0.23, 13.6e-6),
        "dense": _Shares(0.62, 0.10, 25.0e-6),
        "few channels": _Shares(0.31, 0.26, 10.5e-6),
        "by channel": _Shares(0.09, 0.75, 4.7e-6),
        "by group": _Shares(0.22, 0.56, 11.9e-6),
        "product": _Shares(0.60, 0.42, 10.9e-6),
    },
}
# The compiler's own kernels: a launch, and the longer of their bytes at a share of the bandwidth and of their elements by cycles of a
# multiprocessor. Norms of images that are channels last take 0.5 cycles an element whatever they add; others (FUSED) fewer
_FUSED_LAUNCH, _FUSED_SHARE, FUSED_CYCLES, NORM_CYCLES = 1.2e-6, 0.95, 0.385, 0.5
# What a plan takes in a network: a share of its own seconds, and a time. 1x1 convolutions on tensor cores take their own seconds less what
# two events add, as in CUDA graphs of one layer; products do not: their weights are cold, and kernels of the compiler lie between them
_IN_NETWORK = {"half": (0.90, 1.5e-6), "half product": (1.15, 1.5e-6), "f32": (1.05, 0.7e-6)}
# Cycles of a multiprocessor for each result that an epilogue takes longer, tile for tile. Half as many in depthwise kernels. SiLU: ten
# layers of an SE-ResNet in float16 take 2.7 to 10.7 us longer than 0.3 cycles give
_EPILOGUE_CYCLES = {
    "half": {"norm": 0.2, "residual": 0.05, "silu": 0.75, "sigmoid": 0.2, "hard_swish": 0.25, "gelu": 0.45, "gelu_tanh": 0.4},
    "half by channel": {"norm": 0.2, "residual": 0.05, "silu": 0.3, "sigmoid": 0.2, "hard_swish": 0.25, "gelu": 0.45, "gelu_tanh": 0.4},
    "f32": {"norm": 0.05, "residual": 0.05, "silu": 0.45, "sigmoid": 0.3, "hard_swish": 0.33, "gelu": 0.62, "gelu_tanh": 0.62},
}
_RESULTS = 64 * 64  # of a tile
_FILTERS, _FEW_FILTERS = 64, 96  # that cuDNN computes for fewer, and for less than 8: 3 of 64 channels, 3x3, take as long as 96 (float16)
# Channels that cuDNN multiplies for those of one group: 14 layers with 4 to 32 are within 29 %, by their own products within 114 %
_GROUP = 32
# Pixels and filters that cuDNN's kernels for images give a multiprocessor, on tensor cores: small problems leave some idle
_TILE = 256, 128
_ONE_ROW = _Shares(0.7, 0.7, 3e-6)  # products of one row, and convolutions of one pixel
# Products of a few rows, and convolutions of one pixel of a few images: a launch, and a time for each product that a result sums
_MOST_ROWS = 32
_FEW_ROWS = {"half": (4.4e-6, 1.3e-9), "tf32": (6.3e-6, 1.5e-9), "f32": (5.6e-6, 32e-9)}
_READING = 0.9  # of the bandwidth, at which their operands are read at most
_VECTOR = 8  # channels of 16 bytes in 16-bit types; other numbers are copied first, which takes
_PADDING = 4e-6
# Its copies of images and weights into zeros, or back: a launch and a share of the bandwidth, and the zeros before. An HRNet's take 3.0 us
# for 0.9 MB, 4.1 for 1.8, 2.0 for weights, zeros 1.0 to 1.7 (H200, float16, batch 16): 24 us of a layer whose convolution takes 10.8
_PADDED, _PADDED_SHARE, _ZEROS = 1.9e-6, 0.35, 1.0e-6
# A transposed convolution over the convolution of its phases: cuDNN's gradients of strided ones take 0.96 to 1.48 times as long in eight
# layers of DCGAN and 3-D U-Nets (float16, batch 1 and 8, H200: lab/benchmarks/cuda/volumes.py)
_GRADIENT = 1.25
_JOINED_SHARE = 0.08
# Seconds of compiling: once, for each kernel of the compiler's own, and for each layer. Nine networks on an H200 and four cores, three at a
# time, are within 37 % (lab/benchmarks/cuda/first_result.py, way pysim-compiled)
_COMPILING = 5.3, 0.10, 0.07


def fused_seconds(elements: int, moved: int, on: Gpu, cycles_each: float = FUSED_CYCLES) -> float:
    """A kernel that the compiler makes itself, which reads and writes `moved` bytes."""
    cycles = elements * cycles_each / (on.sms.value * on.frequency_hz.value)
    return float(_FUSED_LAUNCH + max(cycles, moved / on.memory_bytes_per_second.value / _FUSED_SHARE))


def copied_seconds(operands: Iterable[Any], on: Gpu) -> float:
    """Copies of these tensors, by the compiler's kernels."""
    return sum(fused_seconds(one.numel(), 2 * one.numel() * one.element_size(), on) for one in operands)


def compile_seconds(kernels: int, layers: int) -> float:
    """What compiling a graph takes, of which so many kernels are the compiler's own."""
    first, each_kernel, each_layer = _COMPILING
    return first + each_kernel * kernels + each_layer * layers


def compiler_seconds(problem: Workload, on: Gpu, passes: bool, adds: bool, fuses_on: bool) -> float:
    """`passes`: operators follow that a plan has in its epilogue; `adds`: one of them adds a residual; `fuses_on`: everything that reads
    their result fuses with them."""
    work, summed = work_of(problem), 2 * adds * work_of(problem).output / on.memory_bytes_per_second.value / _FUSED_SHARE
    one_pass = fused_seconds(work.output // SIZES[problem.dtype], (2 + adds) * work.output, on, NORM_CYCLES)
    return library_seconds(problem, on) + (summed if fuses_on else one_pass if passes else 0.0)


def most_folded(layers: int) -> float:
    """How many of a network's layers may be folded, so that its error is expected to stay within that of the compiler's by _MOST_ERROR."""
    return layers * (_MOST_ERROR**2 - 1) / _FOLDED_ERROR


def folded_seconds(problem: Workload, on: Gpu, adds: bool) -> float:
    """A library's kernel of a convolution with bias and ReLU, which reads the memory of its result, and what is added: 21 problems of
    ResNets and others in float16 take 0.3 to 4.4 us longer so, and 0.5 to 16 with a residual (H200, 0.7 to 39 MB of results)."""
    return library_seconds(problem, on) + (1 + adds) * work_of(problem).output / on.memory_bytes_per_second.value / _FUSED_SHARE


def form_seconds(problem: Workload, on: Gpu, geometry: Geometry, results: int) -> tuple[float, float]:
    """What a plan takes beside its kernel, and what PyTorch does beside `library_seconds`: a transposed convolution's outputs are
    interleaved by another kernel, unless what reads them is computed there, and PyTorch computes a gradient; sequences are not channels
    last in PyTorch (`converted_seconds`)."""
    moved, theirs = 2 * results * SIZES[problem.dtype], converted_seconds(problem, on, results) if len(geometry.stride) == 1 else 0.0
    if geometry.added is None or not isinstance(problem, Conv):
        return 0.0, theirs
    phases = math.prod(geometry.stride)
    padded = SIZES[problem.dtype] == 2 and (problem.channels % _VECTOR or problem.filters // phases % _VECTOR)
    theirs += (_GRADIENT - 1) * library_seconds(problem, on) + (_PADDING if padded else 0.0)
    return fused_seconds(results, moved, on) if phases > 1 else 0.0, theirs


def joined_seconds(problem: Workload, on: Gpu, results: int) -> float:
    """What interleaving takes in the compiler's kernel of a concatenation, which walks over it in another order: 174 us for 56 MB of two
    parts, of which one is a transposed convolution's, and 28 of two parts that lie as they are (U-Net with norms, float16, batch 16)."""
    return float(2 * results * SIZES[problem.dtype] / on.memory_bytes_per_second.value / _JOINED_SHARE)


def converted_seconds(problem: Workload, on: Gpu, results: int) -> float:
    """What cuDNN takes to convert operands and results that are not channels last, as its kernels for tensor cores read and write them."""
    if problem.dtype == "f32":
        return 0.0
    size, work = SIZES[problem.dtype], work_of(problem)
    return sum(fused_seconds(each // size, 2 * each, on) for each in (work.input, work.weights, results * size))


def library_seconds(problem: Workload, on: Gpu) -> float:
    """cuDNN's or cuBLAS's kernel alone."""
    kind, size = kind_beside(problem), SIZES[problem.dtype]
    dtype = "half" if size == 2 else problem.dtype
    if kind == "few rows":
        launch, each = _FEW_ROWS.get(dtype, _FEW_ROWS["f32"])
        rows, summed = (problem.m, problem.k) if isinstance(problem, Gemm) else (problem.batch, problem.products)
        padded = size == 2 and (summed % _VECTOR or work_of(problem).output // size // rows % _VECTOR)
        summing = max(each * summed, rooflines(problem, on)[1] / _READING)
        return float(launch + summing + (_PADDING if padded else 0.0))
    shares = _SHARES.get(dtype, _SHARES["f32"]).get(kind, _ONE_ROW)
    arithmetic, memory = rooflines(problem, on)
    copies = padded_seconds(problem, on) if isinstance(problem, Conv) and kind == "dense" and size == 2 else 0.0
    return float(((arithmetic / shares.flops) ** 3 + (memory / shares.bytes) ** 3) ** (1 / 3) + shares.launch) + copies


def padded_seconds(problem: Conv, on: Gpu) -> float:
    """What cuDNN takes beside a dense convolution of 16-bit numbers to pad channels and filters to whole vectors: input and weights are
    copied into zeros, and of the result the filters that there are."""
    work, odd = work_of(problem), [bool(one % _VECTOR) for one in (problem.channels, problem.filters)]
    into = [work.input] * odd[0] + [work.weights] * any(odd)
    copies, zeros = [*into, *[work.output] * odd[1]], _ZEROS * len(into) + sum(into) / on.memory_bytes_per_second.value
    return float(zeros + sum(_PADDED + 2 * one / on.memory_bytes_per_second.value / _PADDED_SHARE for one in copies))


def rooflines(problem: Workload, on: Gpu) -> tuple[float, float]:
    """Seconds of its arithmetic on the multiprocessors that a library's kernels fill, at their peak, and of its bytes at the bandwidth."""
    kind, rates = kind_beside(problem), on.fma_per_cycle
    fastest = rates["f32"] if kind == "by channel" else rates.get(f"tensor_{problem.dtype}") or rates.get(problem.dtype) or rates["f32"]
    arithmetic = problem.flops / (2 * fastest.value * on.sms.value * on.frequency_hz.value)
    if isinstance(problem, Conv) and kind == "few channels" and problem.dtype != "f32":
        arithmetic /= min(1.0, -(-problem.batch * problem.windows // _TILE[0]) * -(-problem.filters // _TILE[1]) / on.sms.value)
    if isinstance(problem, Conv) and kind == "by group" and SIZES[problem.dtype] == 2:
        arithmetic *= max(1.0, _GROUP * problem.groups / problem.channels)
    if isinstance(problem, Conv) and kind == "dense" and problem.filters < _FILTERS:
        arithmetic *= (_FILTERS if problem.filters >= FEW_CHANNELS else _FEW_FILTERS) / problem.filters
    return arithmetic, sum(work_of(problem)) / on.memory_bytes_per_second.value


def kind_beside(problem: Workload) -> str:
    """The kind of a layer, by which a library's kernels for it differ."""
    kind, pixel = kind_of(problem), isinstance(problem, Conv) and problem.groups == problem.windows == 1
    if 1 < (problem.m if isinstance(problem, Gemm) else problem.batch if pixel else 0) <= _MOST_ROWS:
        return "few rows"
    if isinstance(problem, Gemm) or pixel:
        return "row" if kind == "pixel" else kind
    return "few channels" if kind == "dense" and problem.channels < FEW_CHANNELS else kind


def epilogue_results(problem: Workload, on: Gpu) -> int:
    """The results that the multiprocessor with the most tiles stores."""
    return _RESULTS * math.ceil(work_of(problem).output / SIZES[problem.dtype] / _RESULTS / on.sms.value)


def own_seconds(plan: Plan, on: Gpu, adds: bool, normed: bool = False, activation: Any = None) -> float:
    """What a plan takes with its epilogue. `activation`: as `FusedLayer` has it; a ReLU and bounds take no time."""
    problem, size = plan.workload, "half" if SIZES[plan.workload.dtype] == 2 else "f32"
    residual = work_of(problem).output / on.memory_bytes_per_second.value if adds else 0.0
    parts = {"norm": normed, "residual": adds, str(activation): True}
    by_channel = kind_of(problem) == "by channel"
    table = _EPILOGUE_CYCLES["half by channel" if by_channel and size == "half" else size]
    cycles = sum(value for part, value in table.items() if parts.get(part))
    cycles *= 0.5 if by_channel else 1.0
    alone = plan.seconds or 0.0
    if problem.dtype != "f32" and isinstance(problem, Conv) and problem.pointwise:
        hides = kind_beside(problem) != "few rows"  # gates of images of one pixel take 5.3 to 7.5 us, predicted with events at 5
        alone -= on.event_seconds.value if hides and on.event_seconds else 0.0
    else:
        share, more = _IN_NETWORK["half product" if size == "half" and isinstance(problem, Gemm) else size]
        alone = share * alone + more
    return alone + residual + cycles * epilogue_results(problem, on) / on.frequency_hz.value
