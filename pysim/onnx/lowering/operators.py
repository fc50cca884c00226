# SPDX-License-Identifier: Apache-2.0
"""Lowers ONNX operators to the form that fusion and execution expect (`pysim.network.graph`), one function for each operator.

    LOWER      (node, graph, constants, opset) -> a node; None: it is not lowered and runs by its ONNX definition
    EXPANSIONS (node, graph, constants) -> nodes with the shapes of their outputs, or None

The functions add new constants to `constants`. ProblemError names a node that cannot run.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from pysim.errors import ProblemError, printable
from pysim.network.fusion import norm_constants
from pysim.network.graph import Graph, Node, Quantized, Tensor
from pysim.network.lowering import along, array_operators
from pysim.network.lowering.array_operators import Constants, Parts, constant_of
from pysim.network.lowering.conv_transpose import transposed_by_phases
from pysim.network.numpy_ops.operators import backward_too
from pysim.network.numpy_ops.recurrent import INPUTS, WEIGHTS, recurrent
from pysim.network.numpy_ops.selecting import widened, with_places
from pysim.network.operators import UFUNCS, checked
from pysim.onnx import layers
from pysim.onnx.attributes import integers_of, pads_of, pool_of, transposed_of
from pysim.onnx.lowering import quantities
from pysim.onnx.shape_inference import ValueType

_SLOPE, _STEEPNESS, _EPSILON = (float(np.float32(number)) for number in (0.01, 0.2, 1e-5))  # defaults are float32, as attributes are
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def is_image(name: str, graph: Graph) -> bool:
    tensor = graph.tensors[name]
    return len(tensor.shape) == 4 and tensor.native


def _problem(node: Node, graph: Graph) -> Any:
    """The convolution or product that a node computes, or None if the kernels do not support it."""
    kinds = {"float32": "FLOAT", "float64": "DOUBLE"}
    seen = {name: ValueType(graph.tensors[name].shape, kinds.get(graph.tensors[name].dtype.name, "")) for name in node.inputs[:2]}
    try:
        return layers.read_node(node.attributes["proto"], seen | dict(zip(node.attributes["proto"].input, seen.values(), strict=False)))
    except ProblemError:
        return None


def _check_filters(node: Node, graph: Graph, transposed: bool = False) -> None:
    """ProblemError for weights or a bias that do not fit a convolution's input: shape inference checks their ranks alone."""
    x, w, *bias = (graph.tensors[name] for name in node.inputs if name)
    group, kernel = node.attributes.get("group", 1), list(w.shape[2:])
    channels, filters = (w.shape[0], w.shape[1] * group) if transposed else (w.shape[1] * group, w.shape[0])
    if group < 1 or filters % group or channels % group:
        fault = f"group is {group}; it should divide {x.shape[1]} channels and {filters} filters"
    elif channels != x.shape[1]:
        fault = f"its input has {x.shape[1]} channels, but its weights, {list(w.shape)}, take {channels}"
    elif (given := node.attributes.get("kernel_shape", kernel)) != kernel:
        fault = f"kernel_shape is {given}, but the weights are {list(w.shape)}"
    elif bias and bias[0].shape != (filters,):
        fault = f"its bias is {list(bias[0].shape)}; expected [{filters}], one number per filter"
    elif len(types := {str(one.dtype) for one in (x, w, *bias)}) > 1:
        fault = f"its inputs are of the types {' and '.join(sorted(types))}; expected one type"
    else:
        return
    raise ProblemError(f'{node.op} "{printable(node.name)}": {fault}')


def _conv(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    _check_filters(node, graph)
    problem, x = _problem(node, graph), graph.tensors[node.inputs[0]]
    if problem is None and x.native and len(x.shape) > 2:
        _check_window(node, graph)
    constant = all(name in constants for name in node.inputs[1:] if name)
    if problem is None or not is_image(node.inputs[0], graph):
        return _conv_by_taps(node, graph, constant)
    told, made = graph.tensors[node.output].shape, problem.output_shape
    if told != made:
        raise ProblemError(f'{node.op} "{printable(node.name)}" makes the shape {list(made)}, where the model says {list(told)}')
    return Node("Conv" if constant else "ConvOfTwo", node.name, node.inputs, node.outputs, {"problem": problem})


def _conv_by_taps(node: Node, graph: Graph, constant: bool) -> Node | None:
    """A convolution of volumes (`pysim.network.conv3d`) if its weights are constant, else one over any number of axes by NumPy."""
    given, (x, w) = node.attributes, (graph.tensors[name].shape for name in node.inputs[:2])
    if not graph.tensors[node.inputs[0]].native or len(x) < 3:
        return None
    ones = [1] * (len(x) - 2)
    strides, dilations = (integers_of(given, name, ones) for name in ("strides", "dilations"))
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, w[2:], strict=True)]
    pads = pads_of(given, [*x[2:]], extents, strides)
    about = {"strides": strides, "dilations": dilations, "pads": pads, "group": given.get("group", 1)}
    return Node("Conv" if constant and len(x) == 5 else "ConvByTaps", node.name, node.inputs, node.outputs, about)


def _check_window(node: Node, graph: Graph) -> None:
    """ProblemError for a window larger than the padded image. Shape inference does not reject it: it infers one output."""
    given, (sizes, kernel) = node.attributes, [list(graph.tensors[name].shape[2:]) for name in node.inputs[:2]]
    dilations, strides = (integers_of(given, name, [1] * len(sizes)) for name in ("dilations", "strides"))
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    pads = pads_of(given, sizes, extents, strides)
    padded = [sum(sides) for sides in zip(sizes, pads[: len(sizes)], pads[len(sizes) :], strict=True)]
    if any(extent > size for extent, size in zip(extents, padded, strict=True)):
        raise ProblemError(f'{node.op} "{printable(node.name)}": its window spans {extents}, more than the padded image, {padded}')


def _transposed(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A transposed convolution with explicit pads."""
    _check_filters(node, graph, transposed=True)
    if not graph.tensors[node.inputs[0]].native:
        return None
    sizes, kernel = (graph.tensors[name].shape[2:] for name in node.inputs[:2])
    window = transposed_of(node.attributes, sizes, kernel)
    about = {"strides": window.strides, "dilations": window.dilations, "pads": window.pads, "group": node.attributes.get("group", 1)}
    return Node(node.op, node.name, node.inputs, node.outputs, about)


def _by_phases(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    plain = _transposed(node, graph, constants, 0) if len(graph.tensors[node.inputs[0]].shape) in (4, 5) else None
    return None if plain is None else transposed_by_phases(plain, graph, constants)


def _linear(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A Gemm or MatMul with a constant matrix on the right."""
    problem, given = _problem(node, graph), node.attributes
    if problem is not None and any(node.inputs[2:]):
        try:
            layers.check_addend(problem, ValueType(graph.tensors[node.inputs[2]].shape, ""))
        except ProblemError as error:
            raise ProblemError(f'{node.op} "{printable(node.name)}": {error}') from None
    inputs = node.inputs if given.get("beta", 1.0) else node.inputs[:2]  # with 0, C is not read
    if problem is None or not all(name in constants for name in inputs[1:] if name) or problem.trans_a:
        return None
    right = constants[node.inputs[1]]
    if right.ndim != 2:
        return None
    weights = (right if problem.trans_b else right.T) * right.dtype.type(given.get("alpha", 1.0))
    made = [node.inputs[0], constant_of(constants, node, "weights", np.ascontiguousarray(weights))]
    if len(inputs) > 2 and inputs[2]:
        bias = constants[inputs[2]] * right.dtype.type(given.get("beta", 1.0))
        if bias.ndim > 1 and bias.shape[0] != 1:
            return None
        made.append(constant_of(constants, node, "bias", np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), problem.n))))
    quantized = cast("dict[str, Quantized]", graph.quantized)  # that of the graph in the making
    if (held := quantized.get(node.inputs[1])) and given.get("alpha", 1.0) == 1:
        quantized[made[1]] = held if problem.trans_b else held.transposed()
    if len(made) > 2 and inputs[2] in quantized and given.get("beta", 1.0) == 1:
        quantized[made[2]] = quantized[inputs[2]]
    return Node("Linear", node.name, tuple(made), node.outputs)


def _matmul(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    return _linear(node, graph, constants, opset) or _as_it_is(node, graph, constants, opset)


def _of_halves(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A product of half numbers in float32, rounded once."""
    half, given = np.dtype(np.float16), [name for name in node.inputs if name]
    if any(graph.tensors[name].dtype != half or not graph.tensors[name].nbytes for name in (*given, node.output)):
        return None
    wide, parts, names = dict(graph.tensors), Parts(), dict[str, str]()
    for at, name in enumerate(given):
        shape = graph.tensors[name].shape
        if name in constants:
            names[name] = constant_of(constants, node, f"wide {at}", widened(constants[name]))
        elif name not in names:
            names[name] = f"{node.output}:wide {at}"
            parts.append((Node("Cast", f"{node.name}:wide {at}", (name,), (names[name],)), Tensor(shape, np.dtype(np.float32))))
        wide[names[name]] = Tensor(shape, np.dtype(np.float32))
    result = Tensor(graph.tensors[node.output].shape, np.dtype(np.float32))
    plain = node._replace(inputs=tuple(names.get(name, "") for name in node.inputs), outputs=(f"{node.output}:wide",))
    wide[plain.output] = result
    product = LOWER[node.op](plain, graph._replace(tensors=wide), constants, 0)
    return product and [*parts, (product, result), (Node("Cast", f"{node.name}:rounded", plain.outputs, node.outputs), result.shape)]


def _norm(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    settled = all(name in constants for name in node.inputs[1:5]) and not node.attributes.get("training_mode")
    x = graph.tensors[node.inputs[0]]
    if not settled or len(x.shape) < 2 or not x.native or node.attributes.get("spatial", 1) != 1:
        return None
    gamma, beta, mean, variance = (constants[name] for name in node.inputs[1:5])
    scale, shift = norm_constants(gamma, beta, mean, variance, node.attributes.get("epsilon", _EPSILON))
    dtype = graph.tensors[node.output].dtype
    names = (constant_of(constants, node, "scale", scale.astype(dtype)), constant_of(constants, node, "shift", shift.astype(dtype)))
    return Node("Affine", node.name, (node.inputs[0], *names), node.outputs[:1])


def _channelwise(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Mul or Add with one constant per channel, or one for all channels; a Sum of two is an Add."""
    op = "Add" if node.op == "Sum" else node.op
    _check_axis(node, graph)
    if len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        value = constants.get(other)
        if value is None or x in constants or not is_image(x, graph) or graph.tensors[x] != graph.tensors[node.output]:
            continue
        channels = graph.tensors[x].shape[1]
        if value.size != 1 and (value.size != channels or value.shape[-3:] != (channels, 1, 1)):
            continue
        numbers = np.ascontiguousarray(np.broadcast_to(value.reshape(-1), channels))
        one, zero = np.ones(channels, value.dtype), np.zeros(channels, value.dtype)
        scale, shift = (numbers, zero) if op == "Mul" else (one, numbers)
        names = (constant_of(constants, node, "scale", scale), constant_of(constants, node, "shift", shift))
        return Node("Affine", node.name, (x, *names), node.outputs)
    return Node(op, node.name, node.inputs, node.outputs)


def _check_axis(node: Node, graph: Graph) -> None:
    """ProblemError for operands that are broadcast from another axis than the last, as opsets before 7 allow."""
    if node.attributes.get("broadcast") and "axis" in node.attributes:
        ranks = [len(graph.tensors[name].shape) for name in node.inputs]
        if node.attributes["axis"] % ranks[0] + ranks[1] != ranks[0]:
            why = "it broadcasts along an axis of its own, as operators before opset 7 did: convert the model to a later opset"
            raise ProblemError(f'{node.op} "{printable(node.name)}" cannot be run: {why}')


def _view(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    x, y = (graph.tensors[name].shape for name in (node.inputs[0], node.output))
    if math.prod(x) != math.prod(y):
        elements = f"its input has {math.prod(x)} elements, its output, of shape {list(y)}, {math.prod(y)}"
        raise ProblemError(f'{node.op} "{printable(node.name)}": {elements}; they should be as many')
    return Node("View", node.name, node.inputs[:1], node.outputs)


def _pool(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A pool. A max pool that also outputs indices runs by `with_places`."""
    sizes = list(graph.tensors[node.inputs[0]].shape[2:])
    if not sizes:
        return None
    found = pool_of(node.attributes, sizes)
    if any(node.outputs[1:]):
        by_columns = bool(node.attributes.get("storage_order"))
        return node._replace(op="onnx.MaxPool", attributes={"reference": lambda inputs: with_places(inputs[0], *found, by_columns)})
    plain = {"kernel_shape": found.kernel, "strides": found.strides, "dilations": found.dilations, "pads": found.pads}
    more = {"count_include_pad": node.attributes.get("count_include_pad", 0), "p": node.attributes.get("p", 2)}
    return Node(node.op, node.name, node.inputs, node.outputs[:1], plain | more)


def _recurrent(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A layer with constant weights, which are prepared once."""
    places = [(place, name) for place, name in zip(INPUTS, node.inputs, strict=False) if name]
    if any(place in WEIGHTS and name not in constants for place, name in places):
        return None
    held = {place: constants[name] for place, name in places if place in WEIGHTS}
    run = checked(node.attributes["proto"], recurrent(node.attributes["proto"], opset, held))
    left = tuple(name for place, name in places if place not in held)
    return node._replace(op=f"onnx.{node.op}", inputs=left, attributes={"reference": run})


def _clip(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    bounds, kind = [], graph.tensors[node.output].dtype
    if kind.kind != "f":
        return None
    most = float(np.finfo(kind if opset >= 11 else np.float32).max)  # infinities are clipped, too
    for place, name, default in ((1, "min", -most), (2, "max", most)):
        given = node.inputs[place] if len(node.inputs) > place else ""
        if given and given not in constants:
            return None
        if given and constants[given].size != 1:
            shape = list(constants[given].shape)
            raise ProblemError(f'{node.op} "{printable(node.name)}": its {name} has the shape {shape}; expected one number')
        bounds.append(float(constants[given].reshape(())) if given else float(node.attributes.get(name, default)))
    low, high = bounds
    return Node("Clip", node.name, node.inputs[:1], node.outputs, {"min": min(low, high), "max": high})  # low > high: all become high


def _softmax(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    rank = len(graph.tensors[node.output].shape)
    axis = node.attributes.get("axis", -1 if opset >= 13 else 1) % rank
    return Node(node.op, node.name, node.inputs, node.outputs, {"axes": (axis,) if opset >= 13 else tuple(range(axis, rank))})


def _hard_sigmoid(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """max(0, min(1, alpha x + beta)): of an image as an Affine and a Clip, which a convolution before absorbs, else as two operators."""
    x = graph.tensors[node.inputs[0]]
    if not array_operators.is_native(graph, node.inputs[0]):
        return None
    alpha, beta = (node.attributes.get(name, default) for name, default in (("alpha", _STEEPNESS), ("beta", 0.5)))
    size = (x.shape[1],) if is_image(node.inputs[0], graph) else ()
    names = [constant_of(constants, node, what, np.full(size, of, x.dtype)) for what, of in (("alpha", alpha), ("beta", beta))]
    line, scaled = f"{node.output}:line", f"{node.output}:scaled"
    if size:
        parts: Parts = [(Node("Affine", f"{node.name}:line", (node.inputs[0], *names), (line,)), x.shape)]
    else:
        return [
            (Node("Mul", f"{node.name}:scaled", (node.inputs[0], names[0]), (scaled,)), x.shape),
            (Node("Add", node.name, (scaled, names[1]), node.outputs, {"activation": ("clamp", 0.0, 1.0)}), x.shape),
        ]
    return [*parts, (Node("Clip", node.name, (line,), node.outputs, {"min": 0.0, "max": 1.0}), x.shape)]


def _plane_means(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A mean over the rows and columns of images."""
    mean, (n, c, *_) = _mean(node, graph, constants, 0), (*graph.tensors[node.inputs[0]].shape, 0, 0)
    if mean is None or not is_image(node.inputs[0], graph) or sorted(mean.attributes["axes"]) != [2, 3]:
        return None
    pooled = Node("GlobalAveragePool", f"{node.name}:pool", mean.inputs, (f"{node.output}:pool",))
    return [(pooled, (n, c, 1, 1)), (Node("View", node.name, pooled.outputs, node.outputs), graph.tensors[node.output].shape)]


def _plane_norm(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """InstanceNormalization with constant scales: a layer norm of each plane, and an Affine unless that changes nothing."""
    x = graph.tensors[node.inputs[0]]
    if not array_operators.is_native(graph, node.inputs[0]) or len(x.shape) < 3 or not all(name in constants for name in node.inputs[1:]):
        return None
    ones, zeros = (np.full(x.shape[2:], number, x.dtype) for number in (1, 0))
    names = [constant_of(constants, node, what, array) for what, array in (("ones", ones), ("zeros", zeros))]
    about = {"axis": 2, "epsilon": node.attributes.get("epsilon", _EPSILON)}
    norm = Node("LayerNormalization", node.name, (node.inputs[0], *names), node.outputs[:1], about)
    if (constants[node.inputs[1]] == 1).all() and not constants[node.inputs[2]].any():
        return [(norm, x.shape)]
    norm = norm._replace(name=f"{node.name}:norm", outputs=(f"{node.output}:norm",))
    return [(norm, x.shape), (Node("Affine", node.name, (norm.output, *node.inputs[1:]), node.outputs[:1]), x.shape)]


def _prelu(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """max(x, 0) + slope min(x, 0) of an image with a constant slope per channel; a LeakyRelu if that is one number."""
    (name, slope), y = node.inputs, graph.tensors[node.output]
    numbers, channels = constants.get(slope), y.shape[1] if len(y.shape) == 4 else 0
    if numbers is None or graph.tensors[name] != y or not array_operators.is_native(graph, name, slope) or not np.isfinite(numbers).all():
        return None
    if numbers.size == 1:
        return [(Node("LeakyRelu", node.name, (name,), node.outputs, {"alpha": float(numbers.reshape(()))}), y.shape)]
    if numbers.shape[-3:] != (channels, 1, 1) or numbers.size != channels:
        return None
    scales = [
        constant_of(constants, node, what, of) for what, of in (("slope", numbers.reshape(-1)), ("shift", np.zeros(channels, y.dtype)))
    ]
    high, low, scaled = (f"{node.output}:{what}" for what in ("high", "low", "scaled"))
    return [
        (Node("Clip", f"{node.name}:low", (name,), (low,), {"min": -np.inf, "max": 0.0}), y.shape),
        (Node("Affine", f"{node.name}:scaled", (low, *scales), (scaled,)), y.shape),
        (Node("Relu", f"{node.name}:high", (name,), (high,)), y.shape),
        (Node("Add", node.name, (high, scaled), node.outputs), y.shape),
    ]


_MOST_FACTORS = 4


def _power(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """Pow with a small whole exponent as products; NumPy's power of negative numbers is a hundred times slower."""
    (x, exponent), y = node.inputs, graph.tensors[node.output]
    number = constants.get(exponent)
    count = float(number.reshape(())) if number is not None and number.size == 1 else 0.0
    if count not in range(2, _MOST_FACTORS + 1) or graph.tensors[x] != y or not array_operators.is_native(graph, x):
        return None
    square = Node("Mul", node.name, (x, x), node.outputs)
    if count == 2:
        return [(square, y.shape)]
    square = square._replace(name=f"{node.name}:square", outputs=(f"{node.output}:square",))
    return [(square, y.shape), (Node("Mul", node.name, (square.output, x if count == 3 else square.output), node.outputs), y.shape)]


def _mean(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    rank = len(graph.tensors[node.inputs[0]].shape)
    given = node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        if node.inputs[1] not in constants:
            return None
        given = constants[node.inputs[1]].tolist()
    if not given or graph.tensors[node.output].dtype.kind != "f":
        return None
    return Node("ReduceMean", node.name, node.inputs[:1], node.outputs, {"axes": tuple(axis % rank for axis in given)})


def _concat(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    rank = len(graph.tensors[node.output].shape)
    return Node("Concat", node.name, node.inputs, node.outputs, {"axis": node.attributes.get("axis", 1) % rank})


def _slice(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A Slice with constant bounds. Bounds beyond the end of an axis are clipped, as in Python."""
    x, y = (graph.tensors[name].shape for name in (node.inputs[0], node.output))
    told = dict(zip(("starts", "ends", "axes", "steps"), node.inputs[1:], strict=False))
    if not all(name in constants for name in told.values() if name):
        return None
    given = {what: constants[name].tolist() for what, name in told.items() if name} or node.attributes
    axes = given.get("axes", range(len(given["starts"])))
    slices = [slice(0, size, 1) for size in x]
    for axis, start, end, step in zip(axes, given["starts"], given["ends"], given.get("steps", [1] * len(axes)), strict=True):
        slices[axis] = backward_too(start, end, step, x[axis])
    made = tuple(len(range(*one.indices(size))) for one, size in zip(slices, x, strict=True))
    return Node("Slice", node.name, node.inputs[:1], node.outputs, {"slices": tuple(slices)}) if made == y else None


def split(node: Node, graph: Graph) -> list[Node]:
    """A Split as one Slice for each output that is used."""
    x, start, found = graph.tensors[node.inputs[0]].shape, 0, list[Node]()
    axis = node.attributes.get("axis", 0) % len(x)
    parts = [graph.tensors[name].shape if name else None for name in node.outputs]
    if None in parts[:-1]:  # the size of an unused part is unknown
        return [node]
    for at, (name, part) in enumerate(zip(node.outputs, parts, strict=True)):
        if part is not None:
            end = start + part[axis]
            slices = tuple(slice(start, end, 1) if at_axis == axis else slice(0, size, 1) for at_axis, size in enumerate(x))
            found.append(Node("Slice", f"{node.name}:{at}", node.inputs[:1], (name,), {"slices": slices}))
            start = end
    return found


def _transpose(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    axes = range(len(graph.tensors[node.inputs[0]].shape))
    perm = tuple(node.attributes.get("perm", axes[::-1]))
    if sorted(perm) != [*axes]:
        raise ProblemError(f'Transpose "{node.name}": perm is {list(perm)}; it should have each of {len(axes)} axes once')
    return Node("Transpose", node.name, node.inputs, node.outputs, {"perm": perm})


def _pad(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Pad with a constant; negative pads crop."""
    pads = array_operators.pads_of(node, constants, len(graph.tensors[node.output].shape))
    value = constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else node.attributes.get("value", 0.0)
    if node.attributes.get("mode", b"constant") != b"constant" or pads is None or value is None:
        return None
    return Node("Pad", node.name, node.inputs[:1], node.outputs, {"pads": tuple(pads), "value": np.asarray(value).reshape(())})


def _lrn(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    if node.attributes.get("size", 1) % 2 == 0:
        return None  # the kernel's window is centred
    if not array_operators.is_native(graph, node.inputs[0]) or not node.attributes.get("bias", 1.0) > 0 <= node.attributes.get(
        "alpha", 0.0
    ):
        return None
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, "size": 1}
    return Node("LRN", node.name, node.inputs, node.outputs, {name: node.attributes.get(name, one) for name, one in defaults.items()})


def _leaky_relu(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    floating = graph.tensors[node.output].dtype.kind == "f"
    return Node(node.op, node.name, node.inputs, node.outputs, {"alpha": node.attributes.get("alpha", _SLOPE)}) if floating else None


def _as_it_is(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Floating-point operators with the same meaning as their NumPy function."""
    floating = graph.tensors[node.output].dtype.kind == "f"
    _check_axis(node, graph)
    return Node(node.op, node.name, node.inputs, node.outputs) if floating else None


def _reciprocal(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    kind = graph.tensors[node.output]
    if not array_operators.is_native(graph, *node.inputs):
        return None
    one = constant_of(constants, node, "one", np.ones((), kind.dtype))
    return [(Node("Div", node.name, (one, node.inputs[0]), node.outputs), kind.shape)]


def _bound(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """The larger or smaller of a value and one constant: a Clip."""
    for x, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
        number, y = constants.get(other), graph.tensors[node.output]
        if number is None or number.size != 1 or np.isnan(number).any() or x in constants or graph.tensors[x] != y:
            continue
        if array_operators.is_native(graph, x):
            bound = float(number.reshape(()))
            about = {"min": bound, "max": np.inf} if node.op == "Max" else {"min": -np.inf, "max": bound}
            return [(Node("Clip", node.name, (x,), node.outputs, about), y.shape)]
    return None


def _of_numpy(node: Node, graph: Graph) -> bool:
    """Whether all types are NumPy's own: a float8, whose kind is also "f", has rules for what is too large."""
    kinds = [graph.tensors[name].dtype for name in (*node.inputs, *node.outputs)]
    return all(kind.isbuiltin == 1 and kind.kind in "biuf" for kind in kinds)


def _elementwise(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A function of NumPy's, of one or two operands."""
    fits = len(node.inputs) == UFUNCS[node.op].nin and _of_numpy(node, graph) and "broadcast" not in node.attributes
    return Node(node.op, node.name, node.inputs, node.outputs) if fits else None


def _cast(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Between NumPy's own types."""
    return Node(node.op, node.name, node.inputs, node.outputs) if _of_numpy(node, graph) else None


EXPANSIONS = {
    "ConvTranspose": _by_phases, "HardSigmoid": _hard_sigmoid, "InstanceNormalization": _plane_norm, "PRelu": _prelu,
    "Pow": _power, "ReduceMean": _plane_means, **array_operators.EXPANSIONS, **along.EXPANSIONS,
    **dict.fromkeys(("Gemm", "MatMul"), _of_halves), **dict.fromkeys(("Max", "Min"), _bound), "Reciprocal": _reciprocal,
    **quantities.EXPANSIONS,
}  # fmt: skip
LOWER: dict[str, Callable[[Node, Graph, Constants, int], Node | None]] = {
    "Add": _channelwise, "AveragePool": _pool, "BatchNormalization": _norm, "Cast": _cast, "Clip": _clip, "Concat": _concat, "Conv": _conv,
    "ConvTranspose": _transposed, "Div": _as_it_is, "Gemm": _linear, "GlobalAveragePool": _as_it_is, "Hardmax": _softmax, "LRN": _lrn,
    "LeakyRelu": _leaky_relu, "LogSoftmax": _softmax, "LpPool": _pool, "MatMul": _matmul, "MaxPool": _pool, "Mul": _channelwise,
    "Pad": _pad, "ReduceMean": _mean, "Relu": _as_it_is, "Sigmoid": _as_it_is, "Slice": _slice, "Softmax": _softmax,
    "Sub": _as_it_is, "Sum": _channelwise, "Tanh": _as_it_is, "Transpose": _transpose, **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent), **dict.fromkeys(UFUNCS, _elementwise), **array_operators.LOWER, **along.LOWER,
    **quantities.LOWER,
}  # fmt: skip
