# SPDX-License-Identifier: Apache-2.0
"""The expected time on a CPU of PyTorch's operators, and of a layer here as a PyTorch model calls it, for the choice between them.

    an operator   call + FLOP / peak x flops + bytes of the input, the result and the weights, each at its own price, by kind (PRICES)
    behind it     call + bytes of the result, for each operator on the elements of its result (PASSES)
    a layer here  plan + call + bytes of the operands at its own prices (OWN) + activations and residuals that the kernels' stores lack
                  + copies between planes and channels last + the preparation of weights that the graph computes

Prices are cycles of a core. They were fitted on a Zen 4 core to times measured inside 29 networks (lab/benchmarks/torch_operators_cpu.py,
lab/data/zen4/torch-operators.jsonl, lab/fits/fit_torch.py), none of them in the table of docs/networks.md, PyTorch 2.14 with oneDNN and
MKL. Other processes shared the machine: the median error is 4 to 7 % for dense convolutions and products, 12 % by channel and 22 % for
one-pixel convolutions, and 6 to 10 % for layers here. One share of the roofline for all operators was off by up to 2.9 times. A price per
byte covers what a roofline leaves out: reorders of oneDNN, page faults, values that are not in the nearest cache. PyTorch's operators are
the safe choice, so their prices are of the 30th percentile, and MARGIN is what a layer has to be faster.

The calls of OWN are 23,500 cycles less than fitted, by which calls became shorter afterwards. Where PyTorch's operator is faster than an
activation in the epilogue, it runs behind the layer.

Worked number: 197 rows, 192 channels, 576 filters are 43.6 MFLOP, 0.37 ms at 118 GFLOP/s. PyTorch's product is expected to take 0.52 ms, of
which 22 us are the call. The plan takes 0.40 ms, the layer around it 0.46.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pysim.cachemodel.cpu.activation import activation_cycles
from pysim.machine.cpu import Machine
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Plan
from pysim.registry.cpu import kernels


class Price(NamedTuple):
    """Cycles of a call; the time over that at the peak; cycles per byte of the operands."""

    call: float
    flops: float
    input: float
    output: float
    weights: float


class Work(NamedTuple):
    """Bytes of a problem's operands."""

    input: int
    output: int
    weights: int


PRICES = {
    "dense": Price(122817, 1.066, 0.535, 0.424, 0.646),
    "1x1": Price(54671, 1.105, 0.183, 0.139, 0.569),
    "pixel": Price(43980, 0.000, 15.826, 0.000, 0.189),
    "by channel": Price(363960, 0.913, 0.354, 0.149, 0.768),
    "by group": Price(236051, 0.577, 0.327, 1.423, 1.271),
    "product": Price(80268, 1.166, 0.084, 0.139, 0.328),
    "row": Price(16959, 0.000, 14.653, 66.694, 0.191),
}
# operators on elements: cycles of a call, and per byte of the result
PASSES = {
    "relu": (12408, 0.058),
    "clamp": (23474, 0.058),
    "hard_swish": (16670, 0.128),
    "gelu": (76934, 0.530),
    "silu": (12641, 0.387),
    "sigmoid": (18260, 0.432),
    "norm": (53257, 0.192),
    "add": (15902, 0.191),
    "gelu_tanh": (25000, 2.35),  # alone in a loop: no network of these has it
}
OWN = {
    "dense": Price(93656, 0.000, 0.062, 0.188, 0.090),
    "by group": Price(73922, 0.000, 0.107, 0.004, 0.343),
    "product": Price(146639, 0.000, 0.000, 0.079, 0.047),
    "row": Price(115746, 0.000, 0.000, 13.946, 0.091),
}
ALIKE = {"scale": "add", "1x1": "dense", "pixel": "dense", "by channel": "by group"}
# per byte that is copied between planes and channels last, in networks: EdgeNeXt's of 90 and 393 KB; half of that in a loop
COPIED_CYCLES = 2.0
# per byte of weights that are prepared in each call: NFNet's, whose preparation takes 4 to 16
PREPARED_CYCLES = 8.0
# of an activation's time over that of a model in which each operation is a multiply-add: GELU by erf divides (alone in a loop, 1.2 to 1.5)
EPILOGUES = {"gelu": 1.4}
MARGIN = 0.05


def work_of(p: Workload) -> Work:
    size = SIZES[p.dtype]
    if isinstance(p, Gemm):
        return Work(size * p.m * p.k, size * p.m * p.n, size * p.k * p.n)
    weights = p.filters * p.channels // p.groups * p.kernel_h * p.kernel_w
    return Work(size * p.batch * p.channels * p.height * p.width, size * p.batch * p.filters * p.windows, size * weights)


def kind_of(p: Workload) -> str:
    """The kind of operator that PyTorch has for a problem."""
    if isinstance(p, Gemm):
        return "row" if p.m == 1 else "product"
    if p.groups > 1:
        return "by channel" if p.groups == p.channels else "by group"
    if p.batch * p.windows == 1:
        return "pixel"
    return "1x1" if p.kernel_h == p.kernel_w == 1 else "dense"


def peak_flops(dtype: str, on: Machine) -> float:
    """FLOP per second of the widest kernel that the core can run."""
    rates = [0.0]
    for row in kernels():
        unit = on.unit(row.target)
        if row.dtype == dtype and unit is not None:
            rates.append(row.lane_windows * row.lane_filters * unit.rate(dtype))
    return 2 * (max(rates) or math.nan) * on.clock_hz


def operator_seconds(problem: Workload, on: Machine) -> float:
    """Of PyTorch's convolution or product alone."""
    price = PRICES[kind_of(problem)]
    return _moving_cycles(price, problem) / on.clock_hz + problem.flops / peak_flops(problem.dtype, on) * price.flops


def pass_seconds(name: str, problem: Workload, on: Machine) -> float:
    """Of an operator of PyTorch on the elements of a problem's result."""
    call, byte = PASSES[ALIKE.get(name, name)]
    return (call + byte * work_of(problem).output) / on.clock_hz


def own_activation(problem: Workload, on: Machine, activation: Any) -> Any:
    """The activation, if a kernel's epilogue is expected to be as fast as PyTorch's operator; else None."""
    if activation is None:
        return None
    return activation if epilogue_seconds(problem, on, activation) <= pass_seconds(name_of(activation), problem, on) else None


def own_seconds(
    plan: Plan, on: Machine, passes: Sequence[str], activation: Any, copied_bytes: int = 0, computed_weights: bool = False
) -> float:
    """Of a layer here. `passes`: PyTorch's operators that it replaces, in order; `activation`: its epilogue's; `copied_bytes`: of operands
    that are copied to or from planes; `computed_weights`: each call has others."""
    problem, kind = plan.workload, kind_of(plan.workload)
    cycles = _moving_cycles(OWN[ALIKE.get(kind, kind)], problem) + COPIED_CYCLES * copied_bytes
    cycles += PREPARED_CYCLES * work_of(problem).weights if computed_weights else 0.0
    seconds = (plan.seconds or 0.0) + cycles / on.clock_hz + epilogue_seconds(problem, on, activation)
    if "add" in passes:  # a convolution's stores read the residual, and a product leaves it to PyTorch
        call, byte = (PASSES["add"][0], 1.0) if isinstance(problem, Gemm) else (0, 0.5)
        seconds += (call + byte * PASSES["add"][1] * work_of(problem).output) / on.clock_hz
    apart = bool(passes) and activation is None and passes[-1] not in ("norm", "scale", "add")
    return seconds + (pass_seconds(passes[-1], problem, on) if apart else 0.0)


def epilogue_seconds(problem: Workload, on: Machine, activation: Any) -> float:
    """Of an activation that the kernels' stores lack."""
    if activation is None:
        return 0.0
    size = SIZES[problem.dtype]
    rows = problem.m if isinstance(problem, Gemm) else problem.batch * problem.filters
    columns = work_of(problem).output // size // rows
    cycles = activation_cycles(on, name_of(activation), problem.dtype, size, rows, columns)
    return cycles * EPILOGUES.get(name_of(activation), 1.0) / on.clock_hz


def name_of(activation: Any) -> str:
    """Of an activation with bounds, or without."""
    return activation[0] if isinstance(activation, tuple) else str(activation)


def _moving_cycles(price: Price, problem: Workload) -> float:
    work = work_of(problem)
    return price.call + work.input * price.input + work.output * price.output + work.weights * price.weights
