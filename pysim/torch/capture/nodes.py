# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions as nodes of `pysim.network.graph`: the operators that are known, their arguments by name, and their attributes.

An FX node that is not known, that is called in another way, or that must stay where it is becomes an opaque node with the same inputs.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from pysim.network.graph import Graph, Node
from pysim.torch.capture.channels import linear_over_channels, norm_over_channels
from pysim.torch.capture.effects import Effects
from pysim.torch.layers.conv_forms import Geometry

_Arguments = dict[str, Any]

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
NORM_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_ROW_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
_TANH = ("input", "min_val", "max_val", "inplace")
_RELU, _RELU6 = ("Relu", ("input", "inplace")), ("Relu6", ("input", "inplace"))
_SIGMOID = ("Sigmoid", ("input",))
_FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {  # -> operator, names of positional arguments
    torch.conv2d: ("Conv", _CONV),
    functional.conv2d: ("Conv", _CONV),
    torch.conv3d: ("Conv3d", _CONV),
    functional.conv3d: ("Conv3d", _CONV),
    functional.linear: ("Linear", ("input", "weight", "bias")),
    linear_over_channels: ("Linear", ("input", "weight", "bias")),
    functional.layer_norm: ("LayerNormalization", _ROW_NORM),
    norm_over_channels: ("LayerNormalization", _ROW_NORM),
    functional.batch_norm: ("BatchNormalization", NORM_ARGUMENTS),
    functional.relu: _RELU,
    functional.relu_: _RELU,
    torch.relu: _RELU,
    torch.relu_: _RELU,
    "relu": _RELU,
    "relu_": _RELU,
    functional.relu6: _RELU6,
    functional.hardtanh: ("Clip", _TANH),
    functional.gelu: ("Gelu", ("input", "approximate")),
    functional.silu: ("Silu", ("input", "inplace")),
    functional.hardswish: ("HardSwish", ("input", "inplace")),
    functional.leaky_relu: ("LeakyRelu", ("input", "negative_slope", "inplace")),
    **dict.fromkeys((torch.sigmoid, torch.sigmoid_, functional.sigmoid, "sigmoid", "sigmoid_"), _SIGMOID),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul"), ("Mul", ("input", "other"))),
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), ("Add", ("input", "other"))),
    **{getattr(of, f"conv_transpose{rank}d"): (f"ConvTranspose{rank}d", _TRANSPOSED) for of in (torch, functional) for rank in (1, 2, 3)},
}
_BY_ELEMENT = ("Relu", "Relu6", "Clip", "Gelu", "Silu", "HardSwish", "LeakyRelu", "Sigmoid")
ELEMENTWISE = {key for key, (op, _) in _FUNCTIONS.items() if op in _BY_ELEMENT}
# Convolutions that are layers only where a compiler lays out what lies around them
_COMPILED = {
    **dict.fromkeys((torch.conv1d, functional.conv1d), ("Conv1d", _CONV)),
}
WEIGHTED_OPS = "Conv", "Linear"  # those that become layers of pysim
# In-place operators, which are read as their out-of-place forms if nothing else reads their input or lies in its memory; fusion checks an
# addition's readers
_IN_PLACE = (operator.imul, torch.sigmoid_, "sigmoid_")


def graph_of(traced: fx.Graph, effects: Effects, compiled: bool = False) -> Graph:
    """The nodes of a captured model; placeholders, which parameters are among, are inputs. `compiled`: a compiler lays out the rest, so
    convolutions of sequences are layers, too."""
    nodes, inputs, outputs = [], [], []
    for node in traced.nodes:
        if node.op in ("placeholder", "get_attr"):
            inputs.append(node.name)
        elif node.op == "output":
            outputs += [one.name for one in node.all_input_nodes]
        else:
            nodes.append(_node(node, effects, compiled))
    return Graph(tuple(nodes), tuple(inputs), tuple(outputs))


def _node(node: fx.Node, effects: Effects, compiled: bool) -> Node:
    """A known operator in ONNX's form, any other as an opaque node. A convolution or product stays where it is, so it may be a layer
    wherever that is."""
    if (parts := joined_channels(node)) is not None:
        return Node("Concat", node.name, tuple(one.name for one in parts), (node.name,), {"axis": 1})
    known = _FUNCTIONS | _COMPILED if compiled else _FUNCTIONS
    op, names = known.get(node.target, ("", ())) if node.op in ("call_function", "call_method") else ("", ())
    given = dict(zip(names, node.args, strict=False)) | {("input" if k == "self" else k): v for k, v in node.kwargs.items()}
    read = _READERS.get(op)
    if op == "Mul" and not isinstance(given.get("input"), fx.Node):
        given |= {"input": given.get("other"), "other": given.get("input")}
    x: Any = given.get("input")
    plain = len(node.args) <= len(names) and isinstance(x, fx.Node)
    plain = plain and not (node.target in _IN_PLACE and (len(x.users) > 1 or not effects.owns(x)))
    found = read(given) if read and plain and (op.startswith(WEIGHTED_OPS) or effects.may_move(node)) else None
    if found is None:
        return Node("opaque", node.name, tuple(one.name for one in node.all_input_nodes), (node.name,))
    kind, operands, attributes = found
    if node.target in (linear_over_channels, norm_over_channels):
        attributes["over_channels"] = True
    inputs = tuple(one.name if isinstance(one, fx.Node) else "" for one in operands)
    return Node(kind, node.name, inputs, (node.name,), attributes)


def joined_channels(node: fx.Node) -> list[fx.Node] | None:
    """The parts of a concatenation along the channels; None for other nodes."""
    if node.op != "call_function" or node.target not in (torch.cat, torch.concat, torch.concatenate):
        return None
    given = dict(zip(("tensors", "dim"), node.args, strict=False)) | node.kwargs
    parts = given.get("tensors")
    if given.keys() != {"tensors", "dim"} or given["dim"] != 1 or not isinstance(parts, list | tuple) or not parts:
        return None
    return [*parts] if all(isinstance(one, fx.Node) for one in parts) else None


def _parameter_shape(parameter: Any) -> tuple[int, ...]:
    """The shape of an input of the graph that is the same in each call, as a parameter's is; () for any other argument."""
    if not isinstance(parameter, fx.Node) or parameter.op != "placeholder":
        return ()
    shape = tuple(getattr(parameter.meta.get("example_value"), "shape", ()))
    return shape if all(type(one) is int for one in shape) else ()


_Read = tuple[str, tuple[Any, ...], _Arguments] | None


def _along(value: Any, rank: int) -> tuple[int, ...] | None:
    """A number for each axis."""
    numbers = (value,) * rank if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else ()
    numbers = numbers * rank if len(numbers) == 1 else numbers
    return numbers if len(numbers) == rank and all(isinstance(one, int) for one in numbers) else None


def _read_conv(given: _Arguments, rank: int = 2, is_transposed: bool = False) -> _Read:
    defaults = (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    stride, padding, dilation, added = (_along(given.get(name, default), rank) for name, default in defaults)
    groups = given.get("groups", 1)
    if stride is None or padding is None or dilation is None or added is None or not isinstance(groups, int):
        return None
    geometry = Geometry(stride, padding, dilation, groups, added if is_transposed else None)
    return "Conv", (given["input"], given["weight"], given.get("bias")), {"geometry": geometry}


def _read_linear(given: _Arguments) -> _Read:
    attributes = {"geometry": Geometry(), "filters": _parameter_shape(given["weight"])[:1]}
    return "Linear", (given["input"], given["weight"], given.get("bias")), attributes


def _read_layer_norm(given: _Arguments) -> _Read:
    shape, epsilon = given.get("normalized_shape"), given.get("eps", 1e-5)
    if not isinstance(shape, list | tuple) or len(shape) != 1 or not isinstance(shape[0], int) or not isinstance(epsilon, float):
        return None
    attributes = {"epsilon": epsilon, "channels": shape[0], "over_channels": False}
    return "LayerNormalization", (given["input"], given.get("weight"), given.get("bias")), attributes


def _read_product(given: _Arguments) -> _Read:
    """`scales`: for each operand, (channels,) if it is a parameter with one number per channel of an image, else (). By a number: a
    Times."""
    number = given.get("other")
    if isinstance(number, int | float) and math.isfinite(number) and given.keys() == {"input", "other"}:
        return "Times", (given["input"],), {"factor": float(number)}
    if not _is_tensor_pair(given):
        return None
    scales = {
        one.name: shape[-3:-2]
        for one in (given["input"], given["other"])
        if len(shape := _parameter_shape(one)) > 2 and shape[-2:] == (1, 1) and max(shape) == shape[-3]
    }
    return "Mul", (given["input"], given["other"]), {"scales": scales}


def _read_norm(given: _Arguments) -> _Read:
    numbers = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    are_parameters = all(one is None or (isinstance(one, fx.Node) and one.op == "placeholder") for one in numbers)
    epsilon = given.get("eps", 1e-5)
    if given.get("training", False) is not False or numbers[3] is None or not are_parameters or not isinstance(epsilon, float):
        return None
    return "BatchNormalization", (given["input"], *numbers), {"epsilon": epsilon}


def _read_clip(given: _Arguments) -> _Read:
    bounds = given.get("min_val", -1.0), given.get("max_val", 1.0)
    if not all(isinstance(one, int | float) for one in bounds):
        return None
    return "Clip", (given["input"],), {"min": float(bounds[0]), "max": float(bounds[1])}


def _read_leaky_relu(given: _Arguments) -> _Read:
    slope = given.get("negative_slope", 0.01)
    return ("LeakyRelu", (given["input"],), {"alpha": float(slope)}) if isinstance(slope, int | float) else None


_READERS: dict[str, Callable[[_Arguments], _Read]] = {
    "Conv": _read_conv,
    **{f"Conv{rank}d": partial(_read_conv, rank=rank) for rank in (1, 3)},
    **{f"ConvTranspose{rank}d": partial(_read_conv, rank=rank, is_transposed=True) for rank in (1, 2, 3)},
    "Linear": _read_linear,
    "BatchNormalization": _read_norm,
    "Clip": _read_clip,
    "Add": lambda given: ("Add", (given["input"], given["other"]), {}) if _is_tensor_pair(given) else None,
    "Mul": _read_product,
    "LayerNormalization": _read_layer_norm,
    "Relu": lambda given: ("Relu", (given["input"],), {}),
    "Relu6": lambda given: ("Clip", (given["input"],), {"min": 0.0, "max": 6.0}),
    "Gelu": lambda given: ("Gelu", (given["input"],), {"approximate": given.get("approximate", "none")}),
    "Silu": lambda given: ("Silu", (given["input"],), {}),
    "HardSwish": lambda given: ("HardSwish", (given["input"],), {}),
    "LeakyRelu": _read_leaky_relu,
    "Sigmoid": lambda given: ("Sigmoid", (given["input"],), {}),
}


def _is_tensor_pair(given: _Arguments) -> bool:
    return isinstance(given.get("other"), fx.Node) and given.keys() == {"input", "other"}


def append_inputs(module: fx.GraphModule, made: Sequence[fx.Node]) -> None:
    """Moves these inputs behind the graph's own."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder" and node not in made]
    for node in made:
        (inputs[-1] if inputs else node).append(node)
        inputs.append(node)
