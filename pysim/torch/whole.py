# SPDX-License-Identifier: Apache-2.0
"""Models of accuracy reproducible: captured graphs in which PyTorch computes nothing whose bits may depend on the batch or the CPU.

On a CPU PyTorch computes nothing: a graph is networks (`pysim.network.reproducible`), and views of their results.

On a GPU convolutions and products are pysim's, each by its contract (`pysim.planner.contracts`); a BatchNorm is folded into the convolution
before it. To PyTorch are left operators that compute each element by itself, maxima and means of windows, and moves. Means of planes become
means of windows, which add one after another; PyTorch's own reduction divides a sum among threads by the number of results. All other
operators are refused by name.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from pysim.errors import OperandError
from pysim.torch.capture.aten import is_view
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.layers.norm_layers import NormLayer, RowNormLayer

_LAYERS = {"conv2d", "linear", "batch_norm"}
_ELEMENTWISE = {
    *("add", "add_", "iadd", "sub", "mul", "mul_", "imul", "truediv", "div", "neg", "abs", "maximum", "minimum", "clamp", "where"),
    *("relu", "relu_", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "mish", "sigmoid", "sigmoid_", "tanh", "hardswish"),
    *("hardsigmoid", "hardsigmoid_", "hardswish_", "softplus", "exp", "sqrt", "rsqrt", "square"),
}
_POOLS = {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "max_pool"}
_MOVES = {
    *("cat", "concat", "stack", "split", "chunk", "unbind", "getitem", "flatten", "reshape", "view", "permute", "transpose", "contiguous"),
    *("squeeze", "unsqueeze", "expand", "repeat", "roll", "flip", "pad", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "clone"),
    *("size", "getattr", "shape", "to", "float", "half", "bfloat16", "detach", "dropout", "narrow", "select", "dim", "numel"),
}
KNOWN = _LAYERS | _ELEMENTWISE | _POOLS | _MOVES
ONE_GRAPH = 'accuracy "reproducible" takes calls of optimize(model), in inference, that are one graph: '
_REASON = "accuracy reproducible leaves to PyTorch only operators that compute each element by itself, windows and moves"


def name_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target)).rpartition(".")[2]


def check_networks(module: fx.GraphModule, decisions: Iterable[Decision]) -> None:
    """OperandError for an operator that networks on a CPU leave to PyTorch. `decisions` tell why."""
    moves = operator.getitem, torch.ops.aten.reshape.default
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method") or node.target in moves or is_view(node):
            continue
        reasons = [one.reason for one in decisions if one.runs == "torch"]
        raise OperandError(f"accuracy reproducible leaves nothing to PyTorch on a CPU: {reasons[0] if reasons else node.target}")


def check_operators(module: fx.GraphModule) -> None:
    """Of a graph on a GPU: makes means of planes means of windows; OperandError for an operator that may depend on the batch."""
    for node in list(module.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        if (name := name_of(node)) in ("adaptive_avg_pool2d", "mean"):
            windows = _windows_of(node, name)
            if windows is None:
                raise OperandError(f"{_REASON}; {name} of windows that differ in size, or along other axes than planes, is none")
            node.target, node.op = mean_of_windows, "call_function"
            node.args, node.kwargs = (node.args[0], windows, name == "mean" and not _given(node, 2, "keepdim", False)), {}
        elif name not in KNOWN:
            raise OperandError(f"{_REASON}; {name} is none of them (on CPUs more operators are)")
    module.recompile()


def check_layers(module: fx.GraphModule) -> None:
    """OperandError for a norm that no convolution has absorbed."""
    for one in module.modules():
        links = [link.layer for link in getattr(one, "_links", ())]
        for layer in (one, *links):
            if isinstance(layer, NormLayer | RowNormLayer) or isinstance(getattr(layer, "input_op", None), NormLayer):
                raise OperandError(f"{_REASON}; a norm that is not behind a convolution is none")


def _given(node: fx.Node, at: int, name: str, default: Any) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def _windows_of(node: fx.Node, name: str) -> tuple[int, int] | None:
    """Rows and columns of the windows whose means an operator takes, None if they are not all of one size."""
    value = getattr(node.args[0], "meta", {}).get("example_value") if node.args else None
    if value is None or value.dim() != 4 or not all(type(one) is int for one in value.shape[2:]):
        return None
    high, wide = value.shape[2:]
    if name == "mean":
        axes = _given(node, 1, "dim", None)
        planes = isinstance(axes, tuple | list) and sorted(one % 4 for one in axes) == [2, 3] and set(node.kwargs) <= {"dim", "keepdim"}
        return (high, wide) if planes else None
    size = _given(node, 1, "output_size", None)
    sizes = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(sizes) != 2 or not all(isinstance(one, int) for one in sizes) or high % sizes[0] or wide % sizes[1]:
        return None
    return high // sizes[0], wide // sizes[1]


def mean_of_windows(x: Any, windows: tuple[int, int], flat: bool) -> Any:
    """The mean of each window, added by one thread row by row; `flat`: of planes, without their axes."""
    y = functional.avg_pool2d(x, windows)
    return y.flatten(1) if flat else y
