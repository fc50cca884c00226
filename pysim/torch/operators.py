# SPDX-License-Identifier: Apache-2.0
"""pysim's convolutions and products as an operator of PyTorch, for graphs that a compiler lays out and fuses around it.

    pysim::layer(x, w, scale, shift, y, how)        y = act(scale conv(x, w) + shift), or the same plus what y was (a residual)
    pysim::convolution_relu(x, w, shift, residual, stride, padding, dilation)
                                                    max(0, conv(x, w) + shift + residual) by one kernel of PyTorch's library, cuDNN
    pysim::group_norm(x, residual, gamma, beta, groups, epsilon, how)
                                                    act(group_norm(x) gamma + beta + residual), one pass over memory (`group_norms`)

Operands are as the kernel reads them (`FusedLayer.gpu_operands`): images channels last, products as matrices of rows. Beside x, everything
that is computed from parameters is an argument, and y is a tensor of the graph: the operator keeps nothing, and the compiler places what it
writes. `how` says the rest as text, so a compiled graph that is kept on disk means the same in another process.
"""

import json
from typing import Any

import torch

from pysim import planner
from pysim.caches import LruCache
from pysim.calibration import host
from pysim.record.plan import Plan
from pysim.torch.layers import group_norms, library_conv
from pysim.torch.layers.gpu_launch import GpuLaunch
from pysim.torch.precision import NAMES, TENSORS

_LAUNCHES = 4096  # more than a program's graphs have layers

_launches: LruCache[GpuLaunch] = LruCache(_LAUNCHES)


def how_of(plan: Plan, activation: Any, result: Any, adds: bool) -> str:
    """`activation`: as `FusedLayer` has it. `result`: the type of y. `adds`: y is a residual first."""
    return json.dumps([plan.workload.text, plan.layout, plan.name, activation, NAMES[result], adds])


def _layer(x: Any, w: Any, scale: Any, shift: Any, y: Any, how: str) -> None:
    launch = _launches.get(how) or _launches.put(how, _made(how))
    given = x.contiguous(memory_format=launch.memory_format)
    if launch.can_overwrite(y, given):
        launch.into(y, given, w, scale, shift, how.endswith("true]"))
    else:  # the compiler placed it where the kernel cannot write
        there = torch.empty_like(y, memory_format=launch.memory_format).copy_(y)
        y.copy_(launch.into(there, given, w, scale, shift, how.endswith("true]")))


def _made(how: str) -> GpuLaunch:
    problem, layout, name, activation, result, _ = json.loads(how)
    plan = planner.plan(problem, host.gpu_here(), name=name, layout=layout)
    return GpuLaunch(plan, tuple(activation) if isinstance(activation, list) else activation, TENSORS[result])


def _nothing(*_: Any) -> None:
    """The operator on tensors without memory."""


_LIBRARY = torch.library.Library("pysim", "FRAGMENT")
_LIBRARY.define(
    "layer(Tensor x, Tensor w, Tensor? scale, Tensor? shift, Tensor(a!) y, str how) -> ()", tags=(torch.Tag.needs_fixed_stride_order,)
)
_LIBRARY.impl("layer", _layer, "CompositeExplicitAutograd")
torch.library.register_fake("pysim::layer", _nothing, lib=_LIBRARY)
layer = torch.ops.pysim.layer.default


_LIBRARY.define(
    "convolution_relu(Tensor x, Tensor w, Tensor shift, Tensor? residual, int[] stride, int[] padding, int[] dilation) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
_LIBRARY.impl("convolution_relu", library_conv.convolution_relu, "CompositeExplicitAutograd")
torch.library.register_fake("pysim::convolution_relu", library_conv.result_of, lib=_LIBRARY)
convolution_relu = torch.ops.pysim.convolution_relu.default


def text_of_activation(activation: Any) -> str:
    """As `pysim::group_norm` takes it."""
    return json.dumps(activation)


def _group_norm(x: Any, residual: Any, gamma: Any, beta: Any, groups: int, epsilon: float, how: str) -> Any:
    activation = json.loads(how)
    return group_norms.group_norm(
        x, residual, gamma, beta, groups, epsilon, tuple(activation) if isinstance(activation, list) else activation
    )


_LIBRARY.define(
    "group_norm(Tensor x, Tensor? residual, Tensor? gamma, Tensor? beta, int groups, float epsilon, str how) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
_LIBRARY.impl("group_norm", _group_norm, "CompositeExplicitAutograd")
torch.library.register_fake("pysim::group_norm", group_norms.result_of, lib=_LIBRARY)
group_norm = torch.ops.pysim.group_norm.default
