# SPDX-License-Identifier: Apache-2.0
"""The expected time on a CPU of PyTorch's operators, and of a network here as a PyTorch model calls it, for the choice between them.

    a product or convolution   call + FLOP / peak x flops + bytes of the input, the result and the weights, each at its own price (PRICES)
    attention                  FLOP of its two products / peak x ATTENTION
    another operator           call + bytes of its result (PASSES); VIEW cycles if that lies in its input's memory
    a network here             its plan + CALL + copies of inputs that do not lie in order, and of results

Prices are cycles of a core. They were fitted on a Zen 4 core to times measured inside 29 networks (lab/benchmarks/torch_operators_cpu.py,
lab/data/zen4/torch-operators.jsonl, lab/fits/fit_torch.py), none of them in the table of docs/networks.md, PyTorch 2.14 with oneDNN and
MKL. Other processes shared the machine: the median error is 4 to 7 % for dense convolutions and products, 12 % by channel and 22 % for
one-pixel convolutions. One share of the roofline for all operators was off by up to 2.9 times. A price per byte covers what a roofline
leaves out: reorders of oneDNN, page faults, values that are not in the nearest cache. PyTorch's operators are the safe choice, so their
prices are of the 30th percentile.

Worked number: 197 rows, 192 channels, 576 filters are 43.6 MFLOP, 0.37 ms at 118 GFLOP/s. PyTorch's product is expected to take 0.52 ms, of
which 22 us are the call. The plan takes 0.40 ms.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import fx

from pysim.machine.cpu import Machine
from pysim.network.operator_seconds import DTYPES
from pysim.network.plan import NetworkPlan
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.registry.cpu import kernels
from pysim.torch.capture.aten import is_view
from pysim.torch.capture.forms import Form, forms_in
from pysim.torch.capture.lowering import name_of


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
PASS_OF = {  # operators of PyTorch's that are priced as another than "add"
    "relu": "relu", "leaky_relu": "relu", "hardtanh": "clamp", "clamp": "clamp", "hardswish": "hard_swish", "hardsigmoid": "hard_swish",
    "gelu": "gelu", "silu": "silu", "sigmoid": "sigmoid", "tanh": "sigmoid", "native_batch_norm": "norm", "native_layer_norm": "norm",
    "native_group_norm": "norm",
}  # fmt: skip
VIEW = 4000
# scaled_dot_product_attention alone over its products at the peak: the least of eleven shapes, of which the largest is 4.1
# (lab/benchmarks/torch_attention.py, Zen 4)
ATTENTION = 1.49
CALL = 60000
# per byte that is copied between planes and channels last, in networks: EdgeNeXt's of 90 and 393 KB; half of that in a loop
COPIED_CYCLES = 2.0


def work_of(p: Workload) -> Work:
    size = SIZES[p.dtype]
    if isinstance(p, Gemm):
        return Work(size * p.m * p.k, size * p.m * p.n, size * p.k * p.n)
    return Work(size * p.input_elements, size * p.output_elements, size * p.filter_elements)


def kind_of(p: Workload) -> str:
    """The kind of operator that PyTorch has for a problem."""
    if isinstance(p, Gemm):
        return "row" if p.m == 1 else "product"
    if p.groups > 1:
        return "by channel" if p.groups == p.channels else "by group"
    if p.batch * p.windows == 1:
        return "pixel"
    return "1x1" if p.taps == 1 else "dense"


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


def pytorch_seconds(nodes: Iterable[fx.Node], problems: Mapping[str, Sequence[tuple[Workload, int]]], on: Machine) -> float:
    """Of PyTorch's operators. `problems`: the convolutions and products that some of them are, and how many times."""
    seconds = 0.0
    for node in nodes:
        if node.op == "call_function" and node.name in problems:
            seconds += sum(times * operator_seconds(problem, on) for problem, times in problems[node.name])
        elif name_of(node) == "_scaled_dot_product_flash_attention_for_cpu":
            seconds += _attention_seconds(node, on)
        elif is_view(node):
            seconds += VIEW / on.clock_hz
        elif node.op == "call_function":
            call, byte = PASSES[PASS_OF.get(name_of(node), "add")]
            seconds += (call + byte * forms_in(node.meta["form"])[0].nbytes) / on.clock_hz
    return seconds


def _attention_seconds(node: fx.Node, on: Machine) -> float:
    """Of the products of queries and keys, and of shares and values."""
    query, key, value = (one.meta["form"] for one in node.args[:3])
    flops = 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return flops / peak_flops("bf16" if query.is_narrow else DTYPES[query.tensor.dtype.name], on) * ATTENTION


def network_seconds(plan: NetworkPlan, inputs: Iterable[Form], results: Iterable[Form], on: Machine) -> float:
    """Of a network as a model calls it."""
    copied = sum(form.nbytes for form in (*inputs, *results) if not form.empty().is_contiguous())
    stored = sum(form.nbytes for form in results) * PASSES["add"][1]
    return plan.predicted_seconds + (CALL + COPIED_CYCLES * copied + stored) / on.clock_hz


def _moving_cycles(price: Price, problem: Workload) -> float:
    work = work_of(problem)
    return price.call + work.input * price.input + work.output * price.output + work.weights * price.weights
