# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences (N, C, W) as convolutions of images of one row (N, C, 1, W), which are native. Elementwise operators between
them also work on the images, so that they fuse into the convolutions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pysim.network.graph import Graph, Node, live
from pysim.network.operators import reference
from pysim.onnx.protos import attributes_of

if TYPE_CHECKING:
    import onnx

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PER_AXIS = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}  # what the axis of one row has
_ELEMENTWISE = (
    "Add", "BatchNormalization", "Clip", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "Relu", "Sigmoid",
    "Sub", "Tanh",
)  # fmt: skip


def with_rows(graph: Graph, opset: int) -> Graph:
    """The graph with each convolution of sequences between two views."""
    if not any(_is_of_sequences(node, graph) for node in graph.nodes):
        return graph
    rows = _Rows(graph, opset)
    nodes = tuple(part for node in graph.nodes for part in rows.parts(node))
    return live(graph._replace(nodes=nodes, tensors=rows.tensors, constants=rows.constants))


def _is_of_sequences(node: Node, graph: Graph) -> bool:
    if node.op not in _CONVOLUTIONS or "proto" not in node.attributes:
        return False
    return all(len(graph.tensors[name].shape) == 3 and graph.tensors[name].native for name in node.inputs[:2])


class _Rows:
    def __init__(self, graph: Graph, opset: int) -> None:
        self._graph, self._opset = graph, opset
        self.tensors, self.constants = dict(graph.tensors), dict(graph.constants)
        self._images: dict[str, str] = {}  # sequence -> the image of one row with its elements

    def parts(self, node: Node) -> Iterator[Node]:
        if _is_of_sequences(node, self._graph):
            for name in node.inputs[:2]:
                yield from self._image(name)
            proto = _of_rows(node.attributes["proto"])
            inputs = (*(self._images[name] for name in node.inputs[:2]), *node.inputs[2:])
            yield from self._computed(node._replace(inputs=inputs, attributes=self._attributes(proto)))
        elif node.op in _ELEMENTWISE and len(self._images.keys() & {*node.inputs}) and self._keeps_shape(node):
            yield from self._computed(node._replace(inputs=tuple(self._images.get(name, name) for name in node.inputs)))
        else:
            yield node

    def _keeps_shape(self, node: Node) -> bool:
        """Whether every operand is an image of the result's shape or, behind the first, one that is not broadcast over the axes."""
        x, *others = node.inputs
        shape = self._graph.tensors[node.output].shape
        per_channel = node.op == "BatchNormalization"
        fit = (not name or name in self._images or per_channel or self._graph.tensors[name].shape in ((), (1,)) for name in others)
        same = all(self._graph.tensors[name].shape == shape for name in node.inputs if name in self._images)
        return x in self._images and same and all(fit)

    def _image(self, name: str) -> Iterator[Node]:
        """A view of a sequence; a constant becomes a constant."""
        if name in self._images:
            return
        self._images[name] = image = f"{name}:row"
        n, c, width = self.tensors[name].shape
        self.tensors[image] = self.tensors[name]._replace(shape=(n, c, 1, width))
        if name in self.constants:
            self.constants[image] = self.constants[name].reshape(n, c, 1, width)
        else:
            yield Node("View", image, (name,), (image,))

    def _computed(self, node: Node) -> Iterator[Node]:
        """A node that makes an image, and a view of it as the sequence."""
        name = node.output
        self._images[name] = image = f"{name}:row"
        n, c, width = self.tensors[name].shape
        self.tensors[image] = self.tensors[name]._replace(shape=(n, c, 1, width))
        yield node._replace(outputs=(image, *node.outputs[1:]))
        yield Node("View", image, (image,), (name,))

    def _attributes(self, proto: "onnx.NodeProto") -> dict[str, Any]:
        return attributes_of(proto) | {"proto": proto, "reference": reference(proto, self._opset, {})}


def _of_rows(proto: "onnx.NodeProto") -> "onnx.NodeProto":
    """The node with the attributes of an axis of one row before those of its own axis."""
    made = type(proto).FromString(proto.SerializeToString())
    for one in made.attribute:
        if one.name in _PER_AXIS:
            one.ints[:] = [_PER_AXIS[one.name], *one.ints]
        elif one.name == "pads":
            one.ints[:] = [number for pad in one.ints for number in (0, pad)]
    return made
