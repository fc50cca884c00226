# SPDX-License-Identifier: Apache-2.0
"""How long PyTorch's own operator is expected to take, for the choice between it and a plan; nothing is timed.

    seconds = max(FLOP / peak, bytes / bandwidth) / share + launch

`share` is what PyTorch reaches of the roofline. On a GPU the median of 118 FP32 convolutions (TF32 off) of six networks on an H200, from
0.11 (5th percentile) to 1.12 (95th, Winograd): benchmarks/data/conv-h200-f32.jsonl and conv-h200-networks.jsonl, PyTorch 2.11, cuDNN 9.19. The
same share is taken of a CPU. Where a plan is predicted to take longer than this it is far from the roofline, as a kernel is that is not made for a
problem (depthwise, a few channels a group); where it is near, the two are about as fast and a fused epilogue decides.

Worked number: 118 GFLOP on an H200 that does 66.9 TFLOP/s is 1.76 ms at the roofline, and expected to take 5.04 ms.
"""

import math

from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.registry.rows import kernels

SHARE = 0.35


def pytorch_seconds(problem: Workload, on: Machine | Gpu) -> float:
    """Of one convolution or product."""
    p, moved = problem, SIZES[problem.dtype] * _elements(problem)
    if isinstance(on, Gpu):
        peak = 2 * on.fma_per_cycle[problem.dtype].value * on.sms.value * on.frequency_hz.value
        bandwidth, launch = on.memory_bytes_per_second.value, on.model.pass_seconds.value
    else:
        peak, launch = 2 * _fma_per_cycle(problem.dtype, on) * on.clock_hz, 0.0
        bandwidth = on.memory.read_bytes_per_cycle.value * on.clock_hz
    return max(p.flops / peak, moved / bandwidth) / SHARE + launch


def _elements(p: Workload) -> int:
    """Of both operands and the result."""
    if isinstance(p, Gemm):
        return p.m * p.k + p.k * p.n + p.m * p.n
    weights = p.filters * p.channels // p.groups * p.kernel_h * p.kernel_w
    return p.batch * (p.channels * p.height * p.width + p.filters * p.windows) + weights


def _fma_per_cycle(dtype: str, on: Machine) -> float:
    """Multiply-adds of elements a cycle, by the widest kernel that the core can run."""
    rates = [0.0]
    for row in kernels():
        unit = on.unit(row.target)
        if row.dtype == dtype and unit is not None:
            rates.append(row.lane_windows * row.lane_filters * unit.rate(dtype))
    return max(rates) or math.nan
