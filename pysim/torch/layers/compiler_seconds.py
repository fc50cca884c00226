# SPDX-License-Identifier: Apache-2.0
"""The expected time of a convolution or product in a graph that Inductor compiles, for the choice between it and a plan; nothing is timed.

    seconds = ((FLOP / peak / a)^3 + (bytes / bandwidth / b)^3)^(1/3) + t + pass
    pass    = (2 + residual) output bytes / bandwidth + launch, if a norm, activation or residual follows: Inductor fuses them into one;
              2 residual output bytes / bandwidth, if operators read the result with which it fuses them: then only the sum is written apart

cuDNN's and cuBLAS's kernels reach these shares of the roofline, by kind of layer, as fitted to 1,029 convolutions of networks (batch 1 to
128, H100 and H200, PyTorch 2.11, cuDNN 9.19: lab/data/h100 and h200, `conv-*`, `layers-*`; the faster layout, channels last for few
channels) and 2,101 products (`products-*`). Median errors of dense and 1x1 convolutions: 6 to 9 % in 16-bit types, 9 to 11 % in TF32, 9 to
13 % in FP32. If each convolution is taken whose plan is predicted to win, they take 1 % less time than cuDNN's in 16-bit types, 7 % less in
TF32 and 38 % less in FP32, before any pass is saved; the best choice 5, 11 and 40 % less. Of 16-bit products cuBLAS's are faster on average
and hard to predict (median error 31 %): there the shares are those of its best kernels, and most products stay its own.

Worked number: `conv:mb32ic64ih56oc256kh1:f16` moves 64 MB; at 0.9 of 4.8 TB/s 15 us, and 4.8 of launch; a norm and ReLU after it 24 more.
"""

import math
from typing import Any, NamedTuple

from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Plan
from pysim.torch.layers.expected_cpu import kind_of, work_of

MARGIN = 0.02  # by which a plan must win
FUSED_SHARE = 0.55  # of the bandwidth: what the compiler's own kernels reach (eight networks, lab/data/h200/models-compilers.jsonl)
FEW_CHANNELS = 8  # cuDNN has kernels of their own for images


class _Shares(NamedTuple):
    flops: float
    bytes: float
    launch: float


_SHARES = {  # by type and kind of layer
    "half": {
        "1x1": _Shares(0.64, 0.90, 4.8e-6),
        "dense": _Shares(0.73, 0.45, 10.1e-6),
        "few channels": _Shares(0.13, 0.17, 5.1e-6),
        "by channel": _Shares(0.18, 0.82, 5.4e-6),
        "by group": _Shares(1.00, 0.56, 8.9e-6),
        "product": _Shares(0.80, 0.80, 4.0e-6),
    },
    "tf32": {
        "1x1": _Shares(0.51, 0.85, 6.5e-6),
        "dense": _Shares(0.75, 0.49, 14.1e-6),
        "few channels": _Shares(0.08, 0.45, 6.5e-6),
        "by channel": _Shares(0.07, 1.00, 1.8e-6),
        "by group": _Shares(0.22, 0.99, 11.9e-6),
        "product": _Shares(0.29, 0.53, 7.6e-6),
    },
    "f32": {
        "1x1": _Shares(0.44, 0.35, 7.0e-6),
        "dense": _Shares(0.60, 0.51, 25.3e-6),
        "few channels": _Shares(0.31, 0.28, 9.5e-6),
        "by channel": _Shares(0.08, 0.68, 13.7e-6),
        "by group": _Shares(0.22, 0.56, 11.9e-6),
        "product": _Shares(0.59, 0.29, 8.8e-6),
    },
}
# Cycles of a multiprocessor for each result that an epilogue takes longer than a plain one, tile for tile: of 64 layers and products and
# eight networks on an H200 (lab/data/h200/epilogues.jsonl, models-compilers.jsonl). Half as many in depthwise kernels
_EPILOGUE_CYCLES = {
    "half": {"norm": 0.15, "residual": 0.2, "silu": 0.6, "sigmoid": 0.6, "hard_swish": 0.6, "gelu": 0.75, "gelu_tanh": 0.75},
    "f32": {"norm": 0.08, "residual": 0.18, "silu": 0.4, "sigmoid": 0.4, "hard_swish": 0.4, "gelu": 0.55, "gelu_tanh": 0.55},
}
_RESULTS = 128 * 128  # of a tile
_FILTERS = 64  # that cuDNN computes for a few: 3 of 64 channels, 3x3, 16 images of 192x192 took 108 us in float16
# Pixels and filters that cuDNN's kernels for images give a multiprocessor, on tensor cores: small problems leave some idle
_TILE = 256, 128
_ONE_ROW = _Shares(0.7, 0.7, 3e-6)  # products of one row, and convolutions of one pixel


def compiler_seconds(problem: Workload, on: Gpu, passes: int, adds: bool, fuses_on: bool) -> float:
    """`passes`: how many operators follow that a plan has in its epilogue; `adds`: one of them adds a residual; `fuses_on`: everything that
    reads their result fuses with them."""
    kind, work, rates = _kind_of(problem), work_of(problem), on.fma_per_cycle
    dtype = "half" if problem.dtype in ("f16", "bf16") else problem.dtype
    shares = _SHARES.get(dtype, _SHARES["f32"]).get(kind, _ONE_ROW)
    fastest = rates["f32"] if kind == "by channel" else rates.get(f"tensor_{problem.dtype}") or rates.get(problem.dtype) or rates["f32"]
    peak = 2 * fastest.value * on.sms.value * on.frequency_hz.value
    bandwidth = on.memory_bytes_per_second.value
    arithmetic, memory = problem.flops / peak / shares.flops, sum(work) / bandwidth / shares.bytes
    if isinstance(problem, Conv) and kind == "few channels" and dtype != "f32":
        arithmetic /= min(1.0, -(-problem.batch * problem.windows // _TILE[0]) * -(-problem.filters // _TILE[1]) / on.sms.value)
    if isinstance(problem, Conv) and kind == "dense" and problem.filters < FEW_CHANNELS:
        arithmetic *= _FILTERS / problem.filters
    one_way = work.output / bandwidth / FUSED_SHARE
    after = 2 * adds * one_way if fuses_on else (2 + adds) * one_way + on.model.pass_seconds.value if passes else 0.0
    return float((arithmetic**3 + memory**3) ** (1 / 3) + shares.launch + after)


def _kind_of(problem: Workload) -> str:
    kind = kind_of(problem)
    if isinstance(problem, Gemm) or problem.windows == 1:
        return "row" if kind in ("pixel", "1x1") else kind  # one pixel of each image: products of a few rows
    return "few channels" if kind == "dense" and problem.channels < FEW_CHANNELS else kind


def own_seconds(plan: Plan, on: Gpu, adds: bool, normed: bool = False, activation: Any = None) -> float:
    """What a plan takes with its epilogue. `activation`: as `FusedLayer` has it; a ReLU and bounds take no time."""
    work, dtype = work_of(plan.workload), plan.workload.dtype
    residual = work.output / on.memory_bytes_per_second.value if adds else 0.0
    parts = {"norm": normed, "residual": adds, str(activation): True}
    cycles = sum(value for part, value in _EPILOGUE_CYCLES["half" if SIZES[dtype] == 2 else "f32"].items() if parts.get(part))
    tiles = work.output / SIZES[dtype] / _RESULTS
    each = _RESULTS * cycles / on.frequency_hz.value * (0.5 if kind_of(plan.workload) == "by channel" else 1.0)
    return (plan.seconds or 0.0) + residual + each * math.ceil(tiles / on.sms.value)
