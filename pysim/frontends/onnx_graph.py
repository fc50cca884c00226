# SPDX-License-Identifier: Apache-2.0
"""ONNX models as graphs (`pysim.models.graph`), with their weights: read, shapes inferred, constants folded, nodes in one form each.

What has another form under another opset gets one here: pads and axes as attributes, BatchNorm and channel-wise constants as Affine,
products with a constant matrix as Linear, whatever only reshapes as View. A node that stays as it is carries its `reference`, the onnx
package's own definition of it, and is called onnx.Conv where a Conv would be something else here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import ProblemError, printable
from pysim.frontends import onnx as layers
from pysim.frontends import onnx_shapes
from pysim.frontends.onnx_branches import captured, with_branches
from pysim.frontends.onnx_patterns import with_gelus
from pysim.frontends.onnx_seeds import seeded
from pysim.models.definitions import with_places
from pysim.models.fusion import norm_constants
from pysim.models.graph import Array, Graph, Node, Tensor, folded, live, renamed, without_empty
from pysim.models.operators import reference

if TYPE_CHECKING:
    import onnx

_IDENTITIES = ("Dropout", "Identity")
_VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_STANDARD = ("", "ai.onnx")
_MOST_FOLDED_BYTES = 1 << 31


def read_graph(path: str | Path, batch: int | None = None, seed: int | None = None) -> Graph:
    """The graph of a model file, of a batch that is asked for; with a `seed`, weights that it lacks are random. ProblemError names a node
    that cannot run."""
    return graph_of(load_model(path, batch, seed), printable(str(path)))


def load_model(path: str | Path, batch: int | None = None, seed: int | None = None) -> "onnx.ModelProto":
    """The model as it is run, here and by ONNX Runtime: batch set, weights there."""
    import onnx.checker
    import onnx.external_data_helper

    model = layers.load(Path(path), printable(str(path)))
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(Path(path).resolve().parent))
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
        raise ProblemError(f"{printable(str(path))}: its weights in another file cannot be read: {error}") from None
    model = model if seed is None else seeded(model, seed)
    layers.set_batch(model.graph, printable(str(path)), batch)
    return model


def graph_of(model: "onnx.ModelProto", name: str) -> Graph:
    """The graph of a model in memory, which loses its weights."""
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=1)
    constants = {tensor.name: _array(tensor, name) for tensor in model.graph.initializer}
    declared = layers.undeclared(model.graph)
    model = layers.infer(model, name)
    _check_names(model.graph, name)
    outputs = tuple(value.name for value in model.graph.output)
    read, graph = _settled(model, name, opset, Graph((), (), outputs, {}, constants))
    while (taken := with_branches(model, graph.constants)) is not None:
        model = taken
        constants |= {tensor.name: _array(tensor, name) for tensor in model.graph.initializer if tensor.name not in constants}
        read, graph = _settled(model, name, opset, graph._replace(constants=constants))
    if told := {value: of for value, of in declared.items() if not read.is_known(value) and onnx_shapes.is_known(of)}:
        read, graph = _settled(model, name, opset, graph._replace(constants=constants), told)
    onnx_shapes.check_declared(declared, read.types, name)
    used = graph.users()  # nobody may have said what a second output is that nobody reads
    nodes = tuple(node._replace(outputs=tuple(value if value in used else "" for value in node.outputs)) for node in graph.nodes)
    graph = graph._replace(nodes=nodes)
    tensors = {value: read.tensor(value) for node in graph.nodes for value in node.outputs if value}
    tensors |= {value: read.tensor(value) for value in (*graph.inputs, *outputs)}
    tensors |= {value: Tensor(array.shape, array.dtype) for value, array in graph.constants.items()}
    return live(read.lowered(with_gelus(without_empty(graph._replace(tensors=tensors), ("AveragePool", "Conv", "LpPool", "MaxPool")))))


def _array(tensor: "onnx.TensorProto", name: str) -> Array:
    import onnx

    try:
        found: Array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # whatever its data are short of
        raise ProblemError(f'{name}: the constant "{layers.text_of(tensor.name)}" cannot be read: {error}') from None
    return found


def _check_names(graph: "onnx.GraphProto", name: str) -> None:
    """ProblemError for a name that is no text, and for a value that is read before anything makes it."""
    made = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:
        about = f'{name}: {layers.text_of(node.op_type)} "{layers.text_of(node.name or next(iter(node.output), ""))}"'
        if not all(isinstance(one, str) for one in (node.name, node.op_type, node.domain, *node.input, *node.output)):
            raise ProblemError(f"{about} has a name that is no UTF-8")
        for one in node.input:
            if one not in made:
                raise ProblemError(f'{about} reads "{layers.text_of(one)}", which no node before it makes')
        made.update(node.output)
    for value in graph.output:
        if value.name not in made:
            raise ProblemError(f'{name}: nothing makes its output "{layers.text_of(value.name)}"')


def _settled(
    model: "onnx.ModelProto", name: str, opset: int, graph: Graph, declared: onnx_shapes.Types | None = None
) -> tuple["_Reader", Graph]:
    """A model's nodes as a graph, with every constant that follows from shapes. They are inferred anew as constants become known that they
    depend on: half of the channels, where a model computes how many those are."""
    inferring, types = onnx_shapes.inferred(model, name, declared or {})
    read = _Reader(name, opset, types)
    inputs = tuple(value.name for value in model.graph.input if value.name not in graph.constants)
    known = {value: read.tensor(value) for value in inputs}
    nodes = tuple(map(read.plain, model.graph.node))
    graph = folded(graph._replace(nodes=nodes, inputs=inputs, tensors=known), _evaluated)
    told = {value for value, seen in types.items() if seen.sizes is not None}
    told -= {value for node in model.graph.node for value in node.output}
    while True:
        graph = live(read.shapes_known(graph))
        made = (value for node in graph.nodes for value in node.outputs if value)
        found = {name: array for name, array in graph.constants.items() if name not in told}
        if not found or all(read.is_known(value) for value in made):
            return read, graph
        told |= found.keys()
        inferring, types = onnx_shapes.inferred(layers.with_constants(inferring, found), name, declared or {})
        read = read._replace(types=types)


def _evaluated(node: Node, inputs: Sequence[Array]) -> Sequence[Array]:
    run = node.attributes["reference"]
    found: Sequence[Array] = run(inputs)
    if sum(array.nbytes for array in map(np.asarray, found)) > _MOST_FOLDED_BYTES:
        raise ProblemError(f'{node.op} "{printable(node.name)}" makes a constant of more than {_MOST_FOLDED_BYTES:,} bytes')
    return found


class _Reader(NamedTuple):
    """Nodes of one model in the graph's form; `types` is what shape inference knows of each value."""

    model: str
    opset: int
    types: Mapping[str, layers.ValueType]

    def tensor(self, name: str) -> Tensor:
        """ProblemError where a shape or type is not known."""
        found = self.types.get(name, layers.ValueType(None, "UNDEFINED"))
        sizes = found.sizes
        if sizes is None or not all(isinstance(size, int) for size in sizes):
            shape = "no known shape" if sizes is None else f"the dynamic shape [{', '.join(map(str, sizes))}]"
            right = "give the model fixed sizes (a symbolic batch is set)"
            raise ProblemError(f'{self.model}: the value "{layers.text_of(name)}" has {shape}; {right}')
        import onnx

        if found.element not in {*onnx.TensorProto.DataType.keys()} or found.element == "UNDEFINED":
            raise ProblemError(f'{self.model}: the type of the value "{layers.text_of(name)}" is not known')
        dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(found.element))
        if dtype.kind == "O":
            raise ProblemError(f'{self.model}: the value "{layers.text_of(name)}" is text; nothing here computes with that')
        return Tensor(tuple(size for size in sizes if isinstance(size, int)), np.dtype(dtype))

    def is_known(self, name: str) -> bool:
        return onnx_shapes.is_known(self.types.get(name, layers.ValueType(None, "")))

    def plain(self, proto: "onnx.NodeProto") -> Node:
        """A node with its attributes and its reference; ProblemError where nothing can run it."""
        import onnx

        label = layers.text_of(proto.name or next(iter(proto.output), ""))
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in proto.attribute}
        if proto.op_type == "If" and proto.domain in _STANDARD:
            return Node("If", label, (*proto.input, *captured(proto)), tuple(proto.output), attributes)
        if any(one.HasField("g") or one.graphs for one in proto.attribute):
            raise ProblemError(f'{self.model}: {proto.op_type} "{printable(label)}" cannot be run: control flow inside a model is not run')
        elements = {name: found.element for name in proto.input if (found := self.types.get(name))}
        attributes |= {"reference": reference(proto, self.opset, elements), "proto": proto}
        return Node(proto.op_type, label, tuple(proto.input), tuple(proto.output), attributes)

    def shapes_known(self, graph: Graph) -> Graph:
        """Shape of a value whose sizes are known is a constant, and what is computed of it."""
        constants = dict(graph.constants)
        for node in graph.nodes:
            if node.op == "Shape" and self.is_known(node.inputs[0]):
                sizes = self.types[node.inputs[0]].sizes or ()
                end = node.attributes.get("end", len(sizes))
                constants[node.output] = np.array(sizes[node.attributes.get("start", 0) : end], np.int64)
        left = tuple(node for node in graph.nodes if node.output not in constants)
        return folded(graph._replace(nodes=left, constants=constants), _evaluated) if len(left) < len(graph.nodes) else graph

    def lowered(self, graph: Graph) -> Graph:
        """Every node in the form that fusion and execution know, identities left out."""
        names, nodes, constants, tensors = dict[str, str](), list[Node](), dict(graph.constants), dict(graph.tensors)
        for node in graph.nodes:
            (node,) = renamed([node], names)
            if node.op in _IDENTITIES and not any(node.outputs[1:]) and node.output not in graph.outputs:
                names[node.output] = node.inputs[0]
                continue
            if node.op == "If":
                why = "its condition is not known before the model runs, and control flow is not run"
                raise ProblemError(f'{self.model}: If "{printable(node.name)}" cannot be run: {why}')
            if node.op == "Split":
                nodes += _split(node, graph)
                continue
            if (several := _SEVERAL.get(node.op)) and (parts := several(node, graph, constants)):
                tensors |= {part.output: Tensor(shape, tensors[node.output].dtype) for part, shape in parts}
                nodes += [part for part, _ in parts]
                continue
            lower = _LOWER.get(node.op)
            by_reference = node._replace(op=f"onnx.{node.op}") if lower else node  # none of the form that its name stands for here
            nodes.append((lower and lower(node, graph, constants, self.opset)) or by_reference)
        tensors |= {name: Tensor(array.shape, array.dtype) for name, array in constants.items()}
        return graph._replace(nodes=tuple(nodes), constants=constants, tensors=tensors)


Constants = dict[str, Array]


def _is_image(name: str, graph: Graph) -> bool:
    tensor = graph.tensors[name]
    return len(tensor.shape) == 4 and tensor.native


def _problem(node: Node, graph: Graph) -> Any:
    """The convolution or product that a node is, or None where it is none that the kernels know."""
    kinds = {"float32": "FLOAT", "float64": "DOUBLE"}
    seen = {name: layers.ValueType(graph.tensors[name].shape, kinds.get(graph.tensors[name].dtype.name, "")) for name in node.inputs[:2]}
    try:
        return layers.read_node(node.attributes["proto"], seen | dict(zip(node.attributes["proto"].input, seen.values(), strict=False)))
    except ProblemError:
        return None


def _conv(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    problem = _problem(node, graph)
    if problem is None and _is_image(node.inputs[0], graph):
        _check_window(node, graph)
    if problem is None or not all(name in constants for name in node.inputs[1:]):
        return None
    told, made = graph.tensors[node.output].shape, (problem.batch, problem.filters, problem.out_h, problem.out_w)
    if told != made:
        raise ProblemError(f'{node.op} "{printable(node.name)}" makes the shape {list(made)}, where the model says {list(told)}')
    return Node("Conv", node.name, node.inputs, node.outputs, {"problem": problem})


def _check_window(node: Node, graph: Graph) -> None:
    """ProblemError for a window that is larger than the padded image, of which shape inference makes one output."""
    given, (sizes, kernel) = node.attributes, [list(graph.tensors[name].shape[2:]) for name in node.inputs[:2]]
    dilations, strides = (layers.integers_of(given, name, [1, 1]) for name in ("dilations", "strides"))
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    pads = layers.pads_of(given, sizes, extents, strides)
    padded = [sum(sides) for sides in zip(sizes, pads[:2], pads[2:], strict=True)]
    if any(extent > size for extent, size in zip(extents, padded, strict=True)):
        raise ProblemError(f'{node.op} "{printable(node.name)}": its window spans {extents}, more than the padded image, {padded}')


def _transposed(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A transposed convolution whose output is as large as shape inference made it: where pads are not told, what is more is cut away."""
    given = node.attributes
    if not _is_image(node.inputs[0], graph):
        return None
    plain = {name: layers.integers_of(given, name, [fill] * count) for name, fill, count in (
        ("strides", 1, 2), ("dilations", 1, 2), ("pads", 0, 4), ("output_padding", 0, 2))}  # fmt: skip
    rule, more = given.get("auto_pad", b"NOTSET"), plain.pop("output_padding")
    if rule != b"NOTSET" or "output_shape" in given:
        sizes, kernel, out = (graph.tensors[name].shape[2:] for name in (*node.inputs[:2], node.output))
        axes = zip(sizes, kernel, out, plain["strides"], plain["dilations"], more, strict=True)
        cut = [max(0, (x - 1) * stride + dilation * (k - 1) + 1 + extra - y) for x, k, y, stride, dilation, extra in axes]
        less, rest = [one // 2 for one in cut], [one - one // 2 for one in cut]
        plain["pads"] = less + rest if rule == b"SAME_UPPER" else rest + less
    return Node(node.op, node.name, node.inputs, node.outputs, plain | {"group": given.get("group", 1)})


def _linear(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A Gemm or MatMul with a constant matrix on the right."""
    problem, given = _problem(node, graph), node.attributes
    if problem is None or not all(name in constants for name in node.inputs[1:]) or problem.trans_a:
        return None
    right = constants[node.inputs[1]]
    if right.ndim != 2:
        return None
    weights = (right if problem.trans_b else right.T) * right.dtype.type(given.get("alpha", 1.0))
    inputs = [node.inputs[0], _constant(constants, node, "weights", np.ascontiguousarray(weights))]
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = constants[node.inputs[2]] * right.dtype.type(given.get("beta", 1.0))
        if bias.ndim > 1 and bias.shape[0] != 1:
            return None
        inputs.append(_constant(constants, node, "bias", np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), problem.n))))
    return Node("Linear", node.name, tuple(inputs), node.outputs)


def _matmul(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    return _linear(node, graph, constants, opset) or _as_it_is(node, graph, constants, opset)


def _constant(constants: Constants, node: Node, what: str, array: Array) -> str:
    name = f"{node.output}:{what}"
    constants[name] = array
    return name


def _norm(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    settled = all(name in constants for name in node.inputs[1:5]) and not node.attributes.get("training_mode")
    x = graph.tensors[node.inputs[0]]
    if not settled or len(x.shape) < 2 or not x.native or node.attributes.get("spatial", 1) != 1:
        return None
    gamma, beta, mean, variance = (constants[name] for name in node.inputs[1:5])
    scale, shift = norm_constants(gamma, beta, mean, variance, node.attributes.get("epsilon", 1e-5))
    dtype = graph.tensors[node.output].dtype
    names = (_constant(constants, node, "scale", scale.astype(dtype)), _constant(constants, node, "shift", shift.astype(dtype)))
    return Node("Affine", node.name, (node.inputs[0], *names), node.outputs[:1])


def _channelwise(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Mul or Add with one constant a channel, or one for all; a Sum of two is an Add."""
    op = "Add" if node.op == "Sum" else node.op
    _check_axis(node, graph)
    if len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        value = constants.get(other)
        if value is None or x in constants or not _is_image(x, graph) or graph.tensors[x] != graph.tensors[node.output]:
            continue
        channels = graph.tensors[x].shape[1]
        if value.size != 1 and (value.size != channels or value.shape[-3:] != (channels, 1, 1)):
            continue
        numbers = np.ascontiguousarray(np.broadcast_to(value.reshape(-1), channels))
        one, zero = np.ones(channels, value.dtype), np.zeros(channels, value.dtype)
        scale, shift = (numbers, zero) if op == "Mul" else (one, numbers)
        names = (_constant(constants, node, "scale", scale), _constant(constants, node, "shift", shift))
        return Node("Affine", node.name, (x, *names), node.outputs)
    return Node(op, node.name, node.inputs, node.outputs)


def _check_axis(node: Node, graph: Graph) -> None:
    """ProblemError for operands that are broadcast from an axis on, as before opset 7, and not from the last one."""
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
    """A pool; one that says where the largest elements are, too, by its definition here."""
    sizes = list(graph.tensors[node.inputs[0]].shape[2:])
    if not sizes:
        return None
    found = onnx_shapes.pool_of(node.attributes, sizes)
    if any(node.outputs[1:]):
        by_columns = bool(node.attributes.get("storage_order"))
        return node._replace(op="onnx.MaxPool", attributes={"reference": lambda inputs: with_places(inputs[0], *found, by_columns)})
    plain = {"kernel_shape": found.kernel, "strides": found.strides, "dilations": found.dilations, "pads": found.pads}
    more = {"count_include_pad": node.attributes.get("count_include_pad", 0), "p": node.attributes.get("p", 2)}
    return Node(node.op, node.name, node.inputs, node.outputs[:1], plain | more)


def _clip(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    bounds = []
    for place, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = node.inputs[place] if len(node.inputs) > place else ""
        if given and given not in constants:
            return None
        bounds.append(float(constants[given].reshape(())) if given else float(node.attributes.get(name, default)))
    if graph.tensors[node.output].dtype.kind != "f":
        return None
    low, high = bounds
    return Node("Clip", node.name, node.inputs[:1], node.outputs, {"min": min(low, high), "max": high})  # above all is the highest


def _softmax(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    rank = len(graph.tensors[node.output].shape)
    axis = node.attributes.get("axis", -1 if opset >= 13 else 1) % rank
    return Node(node.op, node.name, node.inputs, node.outputs, {"axes": (axis,) if opset >= 13 else tuple(range(axis, rank))})


Parts = list[tuple[Node, tuple[int, ...]]]  # nodes, and the shapes of what they make


def _hard_sigmoid(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """max(0, min(1, alpha x + beta)) of an image, which a convolution in front of it takes in."""
    x = graph.tensors[node.inputs[0]]
    if not _is_image(node.inputs[0], graph):
        return None
    numbers = [np.full(x.shape[1], node.attributes.get(name, default), x.dtype) for name, default in (("alpha", 0.2), ("beta", 0.5))]
    names = [_constant(constants, node, what, array) for what, array in zip(("alpha", "beta"), numbers, strict=True)]
    line = Node("Affine", f"{node.name}:line", (node.inputs[0], *names), (f"{node.output}:line",))
    return [(line, x.shape), (Node("Clip", node.name, line.outputs, node.outputs, {"min": 0.0, "max": 1.0}), x.shape)]


def _plane_means(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A mean over rows and columns of images."""
    mean, (n, c, *_) = _mean(node, graph, constants, 0), (*graph.tensors[node.inputs[0]].shape, 0, 0)
    if mean is None or not _is_image(node.inputs[0], graph) or sorted(mean.attributes["axes"]) != [2, 3]:
        return None
    pooled = Node("GlobalAveragePool", f"{node.name}:pool", mean.inputs, (f"{node.output}:pool",))
    return [(pooled, (n, c, 1, 1)), (Node("View", node.name, pooled.outputs, node.outputs), graph.tensors[node.output].shape)]


_SEVERAL = {"HardSigmoid": _hard_sigmoid, "ReduceMean": _plane_means}


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
    """One of constant ends; numbers beyond the ends of an axis mean its ends, as in Python."""
    x, y = (graph.tensors[name].shape for name in (node.inputs[0], node.output))
    told = dict(zip(("starts", "ends", "axes", "steps"), node.inputs[1:], strict=False))
    if not all(name in constants for name in told.values() if name):
        return None
    given = {what: constants[name].tolist() for what, name in told.items() if name} or node.attributes
    axes = given.get("axes", range(len(given["starts"])))
    slices = [slice(0, size, 1) for size in x]
    for axis, start, end, step in zip(axes, given["starts"], given["ends"], given.get("steps", [1] * len(axes)), strict=True):
        first, last, by = slice(start, end, step).indices(x[axis])
        slices[axis] = slice(max(first, 0), None if last < 0 else last, by)  # backward from in front of an axis is from its first element
    made = tuple(len(range(*one.indices(size))) for one, size in zip(slices, x, strict=True))
    return Node("Slice", node.name, node.inputs[:1], node.outputs, {"slices": tuple(slices)}) if made == y else None


def _split(node: Node, graph: Graph) -> list[Node]:
    """A Slice for each part that is read."""
    x, start, found = graph.tensors[node.inputs[0]].shape, 0, list[Node]()
    axis = node.attributes.get("axis", 0) % len(x)
    parts = [graph.tensors[name].shape if name else None for name in node.outputs]
    if None in parts[:-1]:  # how many an unread one takes is not known
        return [node]
    for at, (name, part) in enumerate(zip(node.outputs, parts, strict=True)):
        if part is not None:
            end = start + part[axis]
            slices = tuple(slice(start, end, 1) if at_axis == axis else slice(0, size, 1) for at_axis, size in enumerate(x))
            found.append(Node("Slice", f"{node.name}:{at}", node.inputs[:1], (name,), {"slices": slices}))
            start = end
    return found


def _transpose(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    default = range(len(graph.tensors[node.output].shape))[::-1]
    return Node("Transpose", node.name, node.inputs, node.outputs, {"perm": tuple(node.attributes.get("perm", default))})


def _pad(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Pads of a number, or of less than nothing: what these cut away."""
    numbers = list(node.attributes.get("pads", ()))
    rank = len(graph.tensors[node.output].shape)
    if node.attributes.get("mode", b"constant") != b"constant" or not all(name in constants for name in node.inputs[1:] if name):
        return None
    named = {place: constants[name] for place, name in enumerate(node.inputs) if place and name}
    numbers = named[1].tolist() if 1 in named else numbers
    axes = [axis % rank for axis in named[3].tolist()] if 3 in named else range(rank)
    pads = [(0, 0)] * rank
    for axis, before, behind in zip(axes, numbers, numbers[len(numbers) // 2 :], strict=False):
        pads[axis] = (before, behind)
    value = named[2].reshape(()) if 2 in named else node.attributes.get("value", 0.0)
    return Node("Pad", node.name, node.inputs[:1], node.outputs, {"pads": tuple(pads), "value": value})


def _lrn(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, "size": 1}
    return Node("LRN", node.name, node.inputs, node.outputs, {name: node.attributes.get(name, one) for name, one in defaults.items()})


def _as_it_is(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Operators of numbers in floating point whose NumPy function says the same."""
    floating = graph.tensors[node.output].dtype.kind == "f"
    _check_axis(node, graph)
    return Node(node.op, node.name, node.inputs, node.outputs) if floating else None


_LOWER: dict[str, Callable[[Node, Graph, Constants, int], Node | None]] = {
    "Add": _channelwise, "AveragePool": _pool, "BatchNormalization": _norm, "Clip": _clip, "Concat": _concat, "Conv": _conv,
    "ConvTranspose": _transposed, "Div": _as_it_is, "Gemm": _linear, "GlobalAveragePool": _as_it_is, "Hardmax": _softmax, "LRN": _lrn,
    "LogSoftmax": _softmax, "LpPool": _pool, "MatMul": _matmul, "MaxPool": _pool, "Mul": _channelwise, "Pad": _pad, "ReduceMean": _mean,
    "Relu": _as_it_is, "Sigmoid": _as_it_is, "Slice": _slice, "Softmax": _softmax, "Sub": _as_it_is, "Sum": _channelwise, "Tanh": _as_it_is,
    "Transpose": _transpose, **dict.fromkeys(_VIEWS, _view),
}  # fmt: skip
