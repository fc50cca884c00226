# SPDX-License-Identifier: Apache-2.0
"""Models of accuracy reproducible: captured graphs in which PyTorch computes nothing whose bits may depend on the batch or the CPU.

On a CPU PyTorch computes nothing: a graph is networks (`pysim.network.reproducible`), and views of their results.

On a GPU convolutions and products are pysim's, each by its contract (`pysim.planner.contracts`); a BatchNorm is folded into the
convolution before it, or the norms' kernel, as LayerNorm over the last axis is. To PyTorch are left operators that compute each element by
itself, maxima and means of windows, LayerNorm over several axes, attention, and moves. Means of planes and along axes become means of
windows, which add one after another, of large planes first each row, then the rows' means; PyTorch's own reduction divides a sum among
threads by the number of results. Its LayerNorm has a block for each row, memory-efficient attention one for each head and some of its
queries; the other kernels of attention divide keys by the number of blocks.
LayerNorm's operands are dense, rows of attention begin at whole vectors, since kernels differ by alignment.
All other operators are refused by name.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pysim.errors import OperandError
from pysim.runtime.arrays import ALIGNMENT_BYTES
from pysim.torch.capture.aten import is_view
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.layers.norm_layers import VECTOR_BYTES, NormLayer, RowNormLayer

_LAYERS = {"conv2d", "linear", "batch_norm", "layer_norm"}
_ELEMENTWISE = {
    *("add", "add_", "iadd", "sub", "mul", "mul_", "imul", "truediv", "div", "neg", "abs", "maximum", "minimum", "clamp", "where"),
    *("relu", "relu_", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "mish", "sigmoid", "sigmoid_", "tanh", "hardswish"),
    *("hardsigmoid", "hardsigmoid_", "hardswish_", "softplus", "exp", "sqrt", "rsqrt", "square", "addcmul"),
}
_POOLS = {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "max_pool"}
_MOVES = {
    *("cat", "concat", "stack", "split", "chunk", "unbind", "getitem", "flatten", "reshape", "view", "permute", "transpose", "contiguous"),
    *("squeeze", "unsqueeze", "expand", "repeat", "roll", "flip", "pad", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "clone"),
    *(
        "_log_api_usage_once",
        "size",
        "getattr",
        "shape",
        "to",
        "float",
        "half",
        "bfloat16",
        "detach",
        "dropout",
        "narrow",
        "select",
        "dim",
        "numel",
    ),
}
KNOWN = _LAYERS | _ELEMENTWISE | _POOLS | _MOVES
MOST_OF_A_THREAD = 64  # elements of a window that one thread adds
ONE_GRAPH = 'accuracy "reproducible" takes calls of optimize(model), in inference, that are one graph: '
_REASON = "accuracy reproducible leaves to PyTorch only operators that compute each element by itself, windows, rows and moves"


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
    """Of a graph on a GPU: means become means of windows, LayerNorm and attention take dense operands; OperandError for an operator that
    may depend on the batch."""
    for node in list(module.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        if (name := name_of(node)) in ("adaptive_avg_pool2d", "mean"):
            windows = _windows_of(node, name)
            if windows is None:
                raise OperandError(f"{_REASON}; {name} of windows that differ in size, or along axes apart or the first, is none")
            node.target, node.op, node.args, node.kwargs = mean_of_windows, "call_function", (node.args[0], *windows), {}
        elif name == "scaled_dot_product_attention":
            node.target = attention
        elif name not in KNOWN:
            raise OperandError(f"{_REASON}; {name} is none of them (on CPUs more operators are)")
    module.recompile()


def check_layers(module: fx.GraphModule) -> None:
    """Of a graph on a GPU: a BatchNorm that no convolution has absorbed and a LayerNorm are the norms' kernels, whatever their input's
    strides; PyTorch's LayerNorm, of other axes, takes dense operands."""
    for one in module.modules():
        links = [link.layer for link in getattr(one, "links", ())]
        for layer in (one, *links):
            for norm in (layer, getattr(layer, "input_op", None)):
                if isinstance(norm, NormLayer | RowNormLayer):
                    norm.never_pytorch = True
    if others := [node for node in module.graph.nodes if node.op == "call_function" and name_of(node) == "layer_norm"]:
        for node in others:
            node.target = norm_of_rows
        module.recompile()


def _given(node: fx.Node, at: int, name: str, default: Any) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def _windows_of(node: fx.Node, name: str) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, ...]] | None:
    """The planes as which an operator's input is read, the rows and columns of the windows whose means it takes, and its result's sizes
    behind the first; None if windows are not all of one size."""
    value = getattr(node.args[0], "meta", {}).get("example_value") if node.args else None
    if value is None or value.dim() < 2 or not all(type(one) is int for one in value.shape[1:]):
        return None
    shape, last = tuple(value.shape[1:]), tuple(value.shape[-2:])
    if name == "mean":
        axes = _given(node, 1, "dim", None)
        axes = sorted(one % value.dim() for one in ((axes,) if isinstance(axes, int) else axes or ()))
        if not axes or axes[0] == 0 or axes != [*range(axes[0], axes[-1] + 1)] or not set(node.kwargs) <= {"dim", "keepdim"}:
            return None
        kept = (1,) * len(axes) if _given(node, 2, "keepdim", False) else ()
        to = (*shape[: axes[0] - 1], *kept, *shape[axes[-1] :])
        if value.dim() == 4 and axes == [2, 3]:
            return shape, last, to
        window = math.prod(shape[axes[0] - 1 : axes[-1]])
        return (math.prod(shape[: axes[0] - 1]), window, math.prod(shape[axes[-1] :])), (window, 1), to
    size = _given(node, 1, "output_size", None)
    sizes = (size, size) if isinstance(size, int) else tuple(size or ())
    if value.dim() != 4 or len(sizes) != 2 or not all(isinstance(one, int) for one in sizes) or any(map(operator.mod, last, sizes)):
        return None
    return shape, (last[0] // sizes[0], last[1] // sizes[1]), (shape[0], *sizes)


def mean_of_windows(x: Any, planes: tuple[int, ...], windows: tuple[int, int], to: tuple[int, ...]) -> Any:
    """The mean of each window. One thread adds a small window row by row; of others one adds a row, and one the means of its rows, which
    take as many loads one after the other as both sides together. Half precision rounds them in between, so its windows are float32."""
    high, wide = windows
    y = x if x.dim() == 4 and tuple(x.shape[1:]) == planes else x.reshape(-1, *planes)
    if high * wide <= MOST_OF_A_THREAD or min(windows) == 1:
        y = functional.avg_pool2d(y, windows)
    else:
        y = functional.avg_pool2d(functional.avg_pool2d(y.float(), (1, wide)), (high, 1)).to(x.dtype)
    return y if tuple(y.shape[1:]) == to else y.reshape(-1, *to)


def norm_of_rows(x: Any, *args: Any, **kwargs: Any) -> Any:
    return functional.layer_norm(_dense(x), *args, **kwargs)


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **more: Any) -> Any:
    if attn_mask is not None or dropout_p or query.dim() != 4 or more.get("enable_gqa"):
        raise OperandError(f"{_REASON}; attention with a mask, with dropout, with fewer keys than heads or of other than four axes is none")
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return functional.scaled_dot_product_attention(*map(_in_vectors, (query, key, value)), is_causal=is_causal, **more)


def _in_vectors(x: Any) -> Any:
    """A tensor whose last axis lies together, each row at a multiple of 16 bytes: itself or dense."""
    strides = [stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    whole = x.stride(-1) == 1 and not any(one * x.element_size() % VECTOR_BYTES for one in (*strides, x.shape[-1]))
    return x if whole and x.data_ptr() % VECTOR_BYTES == 0 else _dense(x)


def _dense(x: Any) -> Any:
    x = x.contiguous()
    return x.clone() if x.data_ptr() % ALIGNMENT_BYTES else x
