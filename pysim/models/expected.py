# SPDX-License-Identifier: Apache-2.0
"""How long PyTorch's own operators are expected to take, for the choice between them and a plan; nothing is timed.

    seconds = max(FLOP / peak / share, bytes / bandwidth / share, least) + launch + passes (2 output bytes / bandwidth + launch)

`passes` are the operators that a plan computes in its epilogue or folds, and that PyTorch runs one by one. On a GPU each operator keeps the
host busy, too, for HOST_SECONDS at least, unless calls are recorded (`graphed`): it takes no less, however short its kernel is, where
layers of a plan are put on the stream together. `share` is what PyTorch's convolutions reach of the roofline:

    GPU  0.11: the 5th percentile of 118 FP32 convolutions of six networks at batch 32 and more (TF32 off) on an H200; the median is 0.35,
         but batches of 1 and grouped convolutions lie below. PyTorch 2.11, benchmarks/data/conv-h200-f32.jsonl and -networks.jsonl
    CPU  0.36: the median of 90 layers of four torchvision networks, batch 1, on one core of an AMD EPYC (Zen 5), from 0.15 to 0.73 (5th and
         95th percentile), PyTorch 2.14

`least` is 0 on a CPU, and on a GPU 2.1 us, of a convolution 16 ns more for each product of a sum (channels of a group x kernel), which are
added up one after another where outputs are few: of 186 convolutions of batch 1 to 32 on an H200 two took PyTorch less than that and a
launch, by 2 % at most, and 11 small ones with sums of 240 to 1152 products 1.0 to 1.35 times as long
(benchmarks/data/layers-h200-*.jsonl, conv-small-h200.jsonl). HOST_SECONDS is a quarter of what operators of five networks took there at
batch 1 on a host shared by others (19 us and more, benchmarks/data/models-calls-h200.jsonl).

So a plan is turned down where its kernel is not made for the problem: depthwise or a few channels a group, where no kernel knows these.

Worked number: 118 GFLOP on an H200 that does 66.9 TFLOP/s are 1.76 ms at the roofline, and are expected to take 16 ms at most.
"""

import math

from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.registry.cpu import kernels

GPU_SHARE, CPU_SHARE = 0.11, 0.36
GPU_LEAST, GPU_PRODUCT = 2.1e-6, 16e-9
HOST_SECONDS = 5e-6


def pytorch_seconds(problem: Workload, on: Machine | Gpu, passes: int = 0, graphed: bool = False) -> float:
    """Of one convolution or product and so many operators behind it; `graphed`: recorded as a CUDA graph."""
    size, outputs = SIZES[problem.dtype], _outputs(problem)
    moved = size * (_inputs(problem) + outputs)
    if isinstance(on, Gpu):
        rates = on.fma_per_cycle
        fastest = rates.get(f"tensor_{problem.dtype}") or rates.get(problem.dtype) or rates["f32"]
        peak = 2 * fastest.value * on.sms.value * on.frequency_hz.value
        bandwidth, launch, share, least = on.memory_bytes_per_second.value, on.model.pass_seconds.value, GPU_SHARE, GPU_LEAST
        least += 0 if isinstance(problem, Gemm) else GPU_PRODUCT * problem.channels / problem.groups * problem.kernel_h * problem.kernel_w
    else:
        peak, launch, share, least = 2 * _fma_per_cycle(problem.dtype, on) * on.clock_hz, 0.0, CPU_SHARE, 0.0
        bandwidth = on.memory.read_bytes_per_cycle.value * on.clock_hz
    once = 2 * size * outputs / bandwidth + launch
    host = (1 + passes) * HOST_SECONDS if isinstance(on, Gpu) and not graphed else 0.0
    return max(max(problem.flops / peak / share, moved / bandwidth / share, least) + launch + passes * once, host)


def passes_seconds(elements: int, dtype: str, on: Gpu, passes: int, graphed: bool) -> float:
    """What so many operators in front of a convolution, which read and write its input on a GPU, take longer than none; recorded, launches
    are left out, for short kernels' lie behind one another (benchmarks/data/prologues-h200.jsonl, batch 1)."""
    once = 2 * SIZES[dtype] * elements / on.memory_bytes_per_second.value
    return passes * (once if graphed else max(once, HOST_SECONDS))


def _inputs(p: Workload) -> int:
    """Elements of both operands."""
    if isinstance(p, Gemm):
        return p.m * p.k + p.k * p.n
    return p.batch * p.channels * p.height * p.width + p.filters * p.channels // p.groups * p.kernel_h * p.kernel_w


def _outputs(p: Workload) -> int:
    return p.m * p.n if isinstance(p, Gemm) else p.batch * p.filters * p.windows


def _fma_per_cycle(dtype: str, on: Machine) -> float:
    """Multiply-adds of elements a cycle, by the widest kernel that the core can run."""
    rates = [0.0]
    for row in kernels():
        unit = on.unit(row.target)
        if row.dtype == dtype and unit is not None:
            rates.append(row.lane_windows * row.lane_filters * unit.rate(dtype))
    return max(rates) or math.nan
