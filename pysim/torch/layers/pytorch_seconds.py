# SPDX-License-Identifier: Apache-2.0
"""The expected time of PyTorch's own operators, for the choice between them and a plan; nothing is timed.

    seconds = max(FLOP / peak / share, bytes / bandwidth / share, floor) + launch + passes (2 output bytes / bandwidth + launch)

`passes`: the operators that a plan folds or computes in its epilogue, and that PyTorch runs one by one. On a GPU each operator also costs
at least HOST_SECONDS of host time, unless calls are captured (`in_cuda_graph`); a plan's layers are launched together. `share`: the share
of the roofline that PyTorch's convolutions reach:

    GPU  0.11: the 5th percentile of 118 FP32 convolutions of six networks at batch 32 and more (TF32 off) on an H200; the median is 0.35,
         but batches of 1 and grouped convolutions lie below. PyTorch 2.11, lab/data/h200/conv-f32.jsonl and -networks.jsonl
         0.7 for FP32 products of one row: for 11 of them on an H100 the expected time is 0.81 to 1.28 times the measured one
         (lab/data/h100/torch-operators.txt). With 0.11, EfficientNet-B0's classifier at batch 1 ran by a plan of 11.9 us in place of
         5.0 us, and its chains of 128 multiply-adds dominated the error of the logits

On a CPU prices by kind of operator take the place of all this (`pysim.torch.layers.expected_cpu`).

`floor`: 2.1 us, for a convolution plus 16 ns per multiply-add of a dot product (channels of a group x kernel), which
is a sequential chain where outputs are few. Of 186 convolutions of batch 1 to 32 on an H200, PyTorch was faster than floor + launch in two,
by at most 2 %; 11 small ones with dot products of 240 to 1152 took 1.0 to 1.35 times that (lab/data/h200/layers-*.jsonl,
h200/small-conv.jsonl). Convolutions of fewer than eight channels take what `compiler_seconds.library_seconds` says: 3 -> 384 channels of
16x16 pixels with a stride of 16, batch 16, took 99 us in float16 on an H200, where the share above gives 17. HOST_SECONDS is a quarter of
the host time per operator of five networks at batch 1 on a shared host (19 us and more, lab/data/h200/models-calls.jsonl).

So a plan is rejected where no kernel is made for the problem, for example for a few channels a group.

Worked number: 118 GFLOP on an H200 at 66.9 TFLOP/s take 1.76 ms at the roofline; the expected time is at most 16 ms.
"""

from collections.abc import Sequence

from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.torch.layers.compiler_seconds import kind_beside, library_seconds
from pysim.torch.layers.expected_cpu import work_of

GPU_SHARE, GPU_ROW_SHARE = 0.11, 0.7
GPU_FLOOR, GPU_PRODUCT = 2.1e-6, 16e-9
HOST_SECONDS = 5e-6


def pytorch_seconds(
    problem: Workload, on: Gpu, passes: Sequence[str] = (), in_cuda_graph: bool = False, alone: float | None = None
) -> float:
    """Expected seconds of one convolution or product and the `passes`, the operators after it. `alone`: those of the first, if known."""
    work = work_of(problem)
    rates = on.fma_per_cycle
    fastest = rates.get(f"tensor_{problem.dtype}") or rates.get(problem.dtype) or rates["f32"]
    peak = 2 * fastest.value * on.sms.value * on.frequency_hz.value
    bandwidth, launch, floor = on.memory_bytes_per_second.value, on.model.pass_seconds.value, GPU_FLOOR
    share = GPU_ROW_SHARE if isinstance(problem, Gemm) and problem.m == 1 and problem.dtype in ("f32", "tf32") else GPU_SHARE
    floor += 0 if isinstance(problem, Gemm) else GPU_PRODUCT * problem.products
    if kind_beside(problem) == "few channels":
        floor = max(floor, library_seconds(problem, on) - launch)
    one_pass = 2 * work.output / bandwidth + launch
    host = 0.0 if in_cuda_graph else (1 + len(passes)) * HOST_SECONDS
    if alone is None:
        alone = max(problem.flops / peak / share, sum(work) / bandwidth / share, floor) + launch
    return max(alone + len(passes) * one_pass, host)


def passes_seconds(elements: int, dtype: str, on: Gpu, passes: int, in_cuda_graph: bool) -> float:
    """Expected seconds on a GPU of `passes` operators that read and write a convolution's input. In a CUDA graph launches cost nothing:
    they overlap the kernel before (lab/data/h200/prologues.jsonl, batch 1)."""
    one_pass = 2 * SIZES[dtype] * elements / on.memory_bytes_per_second.value
    return passes * (one_pass if in_cuda_graph else max(one_pass, HOST_SECONDS))
