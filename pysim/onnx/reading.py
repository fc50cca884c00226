# SPDX-License-Identifier: Apache-2.0
"""Reads ONNX models, with weights, as graphs (`pysim.network.graph`): infers shapes, folds constants, and lowers each node to one form.

Forms that differ between opsets are unified: pads and axes are attributes, BatchNorm and channel-wise constants are Affine, products with
a constant matrix are Linear, and everything that only reshapes is View. A node that is not lowered carries its `reference`, the onnx
package's own definition of it. Its op is then, for example, "onnx.Conv", since "Conv" is the lowered form.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import ProblemError, printable
from pysim.network.graph import Array, Graph, Node, Quantized, Tensor, folded, live, renamed, without_empty
from pysim.network.lowering.array_operators import Parts
from pysim.network.operators import reference
from pysim.onnx import shape_inference
from pysim.onnx.branches import captured, with_branches
from pysim.onnx.halves import widened
from pysim.onnx.lowering.conv1d import with_rows
from pysim.onnx.lowering.fused import without_fused
from pysim.onnx.lowering.fused_integers import ACCURACY_LEVEL, TO_BYTES
from pysim.onnx.lowering.operators import EXPANSIONS, LOWER, split
from pysim.onnx.lowering.patterns import with_patterns
from pysim.onnx.lowering.regions import with_regions
from pysim.onnx.names import check_names, check_nodes, check_utf8
from pysim.onnx.protos import STANDARD, ModelError, array_of, attributes_of, described, label_of, of_model, text_of
from pysim.onnx.shape_inference import ValueType

if TYPE_CHECKING:
    import onnx

_IDENTITIES = ("Dropout", "Identity")
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_MOST_FOLDED_BYTES = 1 << 31
_MOST_ELEMENTS = (1 << 63) // 16  # complex numbers have 16 bytes


def graph_of(model: "onnx.ModelProto", name: str) -> Graph:
    """The graph of a model in memory. Removes the weights from `model`."""
    with of_model(name):
        return _graph_of(model)


def _graph_of(model: "onnx.ModelProto") -> Graph:
    opset = max((one.version for one in model.opset_import if one.domain in STANDARD), default=1)
    constants = {tensor.name: array_of(tensor) for tensor in model.graph.initializer}
    declared = shape_inference.undeclared(model.graph)
    model = without_fused(shape_inference.infer(model), opset)
    short = widened(model, constants, declared)
    check_utf8(model.graph)
    check_names(model.graph)
    check_nodes(model)
    outputs = tuple(value.name for value in model.graph.output)
    if not outputs:
        raise ModelError(" has no outputs; expected at least one")
    read, graph = _settled(model, opset, Graph((), (), outputs, {}, constants, narrow=short.narrow, half=short.half))
    while (taken := with_branches(model, graph.constants)) is not None:
        model = taken
        constants |= {tensor.name: array_of(tensor) for tensor in model.graph.initializer if tensor.name not in constants}
        read, graph = _settled(model, opset, graph._replace(constants=constants))
    if told := {value: of for value, of in declared.items() if not read.is_known(value) and shape_inference.is_known(of)}:
        read, graph = _settled(model, opset, graph._replace(constants=constants), told)
    makers = {value: f'{text_of(node.op_type)} "{text_of(node.name or value)}"' for node in model.graph.node for value in node.output}
    shape_inference.check_declared(declared, read.types, makers)
    used = graph.users()  # an unused second output may have no known type
    nodes = tuple(node._replace(outputs=tuple(value if value in used else "" for value in node.outputs)) for node in graph.nodes)
    graph = graph._replace(nodes=nodes)
    if not all(read.is_known(value) for node in graph.nodes for value in node.outputs if value):
        shape_inference.check_strictly(model)
        graph = with_regions(graph, read.is_known)
    tensors = {value: read.tensor(value) for node in graph.nodes for value in node.outputs if value}
    tensors |= {value: read.tensor(value) for value in (*graph.inputs, *outputs) if value not in graph.constants}
    tensors |= {value: Tensor(array.shape, array.dtype) for value, array in graph.constants.items()}
    graph = without_empty(graph._replace(tensors=tensors), ("AveragePool", "Conv", "LpPool", "MaxPool"))
    return live(read.lowered(with_rows(with_patterns(graph), opset)))


def _settled(model: "onnx.ModelProto", opset: int, graph: Graph, declared: shape_inference.Types | None = None) -> tuple["_Reader", Graph]:
    """A model's nodes as a graph, with every constant that follows from shapes. Repeats shape inference while new constants become known,
    since shapes may depend on them: for example, a model may compute half of its channels from a Shape."""
    inferring, types = shape_inference.inferred(model, declared or {})
    read = _Reader(opset, types, _places(model))
    inputs = tuple(value.name for value in model.graph.input if value.name not in graph.constants)
    known = {value: read.tensor(value) for value in inputs}
    nodes = tuple(map(read.plain, model.graph.node))
    graph = folded(graph._replace(nodes=nodes, inputs=inputs, tensors=known), _evaluated)
    told = {value for value, seen in types.items() if seen.sizes is not None}
    told -= {value for node in model.graph.node for value in node.output}
    graph = graph._replace(quantized={**graph.quantized, **_quantized(nodes, graph.constants, opset)})
    while True:
        graph = live(read.shapes_known(graph))
        made = (value for node in graph.nodes for value in node.outputs if value)
        found = {name: array for name, array in graph.constants.items() if name not in told}
        if not found or all(read.is_known(value) for value in made):
            return read, graph
        told |= found.keys()
        inferring, types = shape_inference.inferred(shape_inference.with_constants(inferring, found), declared or {})
        read = read._replace(types=types)


def _places(model: "onnx.ModelProto") -> dict[str, str]:
    """For each value, which node makes it, or else which reads it first, in words."""
    found: dict[str, str] = {}
    for node in model.graph.node:
        label = described(node)
        for name in node.input:
            found.setdefault(name, f" before {label}")
        found |= dict.fromkeys(node.output, f" behind {label}")
    return found


def _evaluated(node: Node, inputs: Sequence[Array]) -> Sequence[Array] | None:
    """The outputs of a node; None for an If, which has no reference: `with_branches` replaces it, and for pools, whose windows are those of
    `pysim.onnx.attributes`."""
    run = node.attributes.get("reference")
    if run is None or node.op in _POOLS:
        return None
    found: Sequence[Array] = run(inputs)
    if sum(array.nbytes for array in map(np.asarray, found)) > _MOST_FOLDED_BYTES:
        raise ProblemError(f'{node.op} "{printable(node.name)}" makes a constant of more than {_MOST_FOLDED_BYTES:,} bytes')
    return found


def _quantized(nodes: Sequence[Node], constants: Mapping[str, Array], opset: int) -> dict[str, Quantized]:
    """The integers that constants are made of."""
    found = dict[str, Quantized]()
    for node in nodes:
        if node.op == "DequantizeLinear" and node.output in constants:
            values, scale, *zero = (constants.get(name) for name in node.inputs if name)
            if values is not None and scale is not None and scale.dtype == np.float32 and constants[node.output].dtype == np.float32:
                at = zero[0] if zero and zero[0] is not None else np.zeros((), values.dtype)
                about = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
                if not about[1] or (values.ndim == 2 and scale.ndim == 2):
                    told = {one.key: one.value for one in node.attributes["proto"].metadata_props}
                    found[node.output] = Quantized(values, scale, at, *about, told.get(ACCURACY_LEVEL) == TO_BYTES)
    return found


@cache
def _dtype_of(element: str) -> np.dtype[Any] | None:
    """NumPy's type for ONNX's name of one; None for a name that is no type's."""
    import onnx

    if element not in onnx.TensorProto.DataType.keys() or element == "UNDEFINED":  # noqa: SIM118  # no dict
        return None
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(element)))


class _Reader(NamedTuple):
    """Converts nodes of one model to the graph's form; `types` has the inferred type of each value."""

    opset: int
    types: Mapping[str, ValueType]
    places: Mapping[str, str]

    def tensor(self, name: str) -> Tensor:
        """The shape and type of a value; ModelError, which names the node that makes or reads the value, if either is unknown."""
        value, place = f': the value "{text_of(name)}"', self.places.get(name, "")
        found = self.types.get(name, ValueType(None, "UNDEFINED"))
        sizes = found.sizes
        if sizes is None or not all(isinstance(size, int) for size in sizes):
            shape = "no known shape" if sizes is None else f"the dynamic shape [{', '.join(map(str, sizes))}]"
            right = "give the model fixed sizes (a symbolic batch is set)"
            raise ModelError(f"{value} has {shape}{place}; {right}")
        if any(isinstance(size, int) and size < 0 for size in sizes):
            by = place.replace(" behind ", ", made by ") + ","
            raise ModelError(f"{value}{by} has the negative shape {list(sizes)}")
        if math.prod(size for size in sizes if isinstance(size, int)) > _MOST_ELEMENTS:
            raise ModelError(f"{value} has the shape {list(sizes)}{place}, whose bytes exceed int64")
        dtype = _dtype_of(found.element)
        if dtype is None:
            raise ModelError(f"{value} has no known type{place}")
        if dtype.kind == "O":
            raise ModelError(f"{value} is text{place}; nothing here computes with that")
        return Tensor(tuple(size for size in sizes if isinstance(size, int)), dtype)

    def is_known(self, name: str) -> bool:
        return shape_inference.is_known(self.types.get(name, ValueType(None, "")))

    def plain(self, proto: "onnx.NodeProto") -> Node:
        """A node with its attributes and its reference; ProblemError if nothing can run it."""
        label = label_of(proto)
        attributes = attributes_of(proto)
        if proto.op_type == "If" and proto.domain in STANDARD:
            return Node("If", label, (*proto.input, *captured(proto)), tuple(proto.output), attributes)
        if any(one.HasField("g") or one.graphs for one in proto.attribute):
            raise ModelError(f': {proto.op_type} "{printable(label)}" cannot be run: control flow inside a model is not run')
        elements = {name: found.element for name in proto.input if (found := self.types.get(name))}
        attributes |= {"reference": reference(proto, self.opset, elements), "proto": proto}
        return Node(proto.op_type, label, tuple(proto.input), tuple(proto.output), attributes)

    def shapes_known(self, graph: Graph) -> Graph:
        """Replaces Shape of a value with known sizes by a constant, and folds what depends on it."""
        constants = dict(graph.constants)
        for node in graph.nodes:
            if node.op == "Shape" and self.is_known(node.inputs[0]):
                sizes = self.types[node.inputs[0]].sizes or ()
                end = node.attributes.get("end", len(sizes))
                constants[node.output] = np.array(sizes[node.attributes.get("start", 0) : end], np.int64)
        left = tuple(node for node in graph.nodes if node.output not in constants)
        return folded(graph._replace(nodes=left, constants=constants), _evaluated) if len(left) < len(graph.nodes) else graph

    def lowered(self, graph: Graph) -> Graph:
        """Every node in the form that fusion and execution expect, without identities."""
        names, nodes, constants, tensors = dict[str, str](), list[Node](), dict(graph.constants), dict(graph.tensors)
        quantized = dict(graph.quantized)
        graph = graph._replace(tensors=tensors, quantized=quantized)  # extended below
        for node in graph.nodes:
            (node,) = renamed([node], names)
            if node.op in _IDENTITIES and not any(node.outputs[1:]) and node.output not in graph.outputs:
                names[node.output] = node.inputs[0]
                continue
            if node.op == "If":
                why = "its condition is not known before the model runs, and control flow is not run"
                raise ModelError(f': If "{printable(node.name)}" cannot be run: {why}')
            for part, shape in self._forms(node, graph, constants):
                if shape is not None:
                    tensors[part.output] = shape if isinstance(shape, Tensor) else Tensor(shape, tensors[node.outputs[0]].dtype)
                (part,) = renamed([_as_view(part, tensors)], names)
                if part.op in ("Transpose", "View") and part.inputs[0] in constants and part.output not in graph.outputs:
                    transposed = constants[part.inputs[0]].transpose(part.attributes.get("perm", range(constants[part.inputs[0]].ndim)))
                    constants[part.output] = np.ascontiguousarray(transposed).reshape(tensors[part.output].shape)
                elif part.op == "View" and part.output not in graph.outputs and tensors[part.inputs[0]] == tensors[part.output]:
                    names[part.output] = part.inputs[0]
                else:
                    nodes.append(part)
        tensors |= {name: Tensor(array.shape, array.dtype) for name, array in constants.items()}
        return graph._replace(nodes=tuple(nodes), constants=constants, tensors=tensors)

    def _forms(self, node: Node, graph: Graph, constants: dict[str, Array]) -> Parts:
        """The nodes that a node is lowered to, each with its output's shape if `graph` lacks it."""
        if node.op == "Split":
            return [(part, None) for part in split(node, graph)]
        if (expand := EXPANSIONS.get(node.op)) and (parts := expand(node, graph, constants)):
            return parts
        lower = LOWER.get(node.op)
        if lower is None and node.op not in EXPANSIONS:
            return [(node, None)]
        by_reference = node._replace(op=f"onnx.{node.op}")  # not in the form that the plain name means here
        return [((lower and lower(node, graph, constants, self.opset)) or by_reference, None)]


def _as_view(node: Node, tensors: Mapping[str, Tensor]) -> Node:
    """A transposition that does not reorder elements in memory becomes a View."""
    if node.op != "Transpose" or "perm" not in node.attributes:
        return node
    shape = tensors[node.inputs[0]].shape
    moved = [axis for axis in node.attributes["perm"] if shape[axis] != 1]
    return Node("View", node.name, node.inputs, node.outputs) if moved == sorted(moved) else node
