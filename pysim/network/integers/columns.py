# SPDX-License-Identifier: Apache-2.0
"""Products of quantised rows divided by columns where Slices divide their results, so that each part is quantised in its own store: queries
and keys of an attention become bytes there, its values stay numbers.

    Linear (x, w), Views, Slices of neighbouring columns      -> a Linear for each Slice, of its rows of w, and a View
    Transpose, View that only drops axes of size 1            -> View, Transpose

A column of a product does not depend on the others, so results are the same. A product is divided only if a part of it is quantised, moved
and multiplied by a number at most; else one product of all columns packs and reads its rows once.

Worked number: 197 rows of 192 numbers times 576 columns are three products of 192 columns; 454 KB of numbers are not copied by Slices.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from pysim.network.graph import Array, Graph, Node, Quantized, Tensor

_BETWEEN = ("Affine", "Div", "Mul", "Transpose", "View")  # a part and its Quantize


class _Piece(NamedTuple):
    """A Slice of a product's columns first .. last - 1."""

    node: Node
    first: int
    last: int


def with_divided_products(graph: Graph) -> Graph:
    graph = _with_views_first(graph)
    return _Divided(graph).graph() if any(node.op == "Quantize" for node in graph.nodes) else graph


class _Divided:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._users, self._makers = graph, graph.users(), graph.makers()
        self._constants, self._quantized, self._tensors = dict(graph.constants), dict(graph.quantized), dict(graph.tensors)

    def graph(self) -> Graph:
        replaced: dict[str, list[Node]] = {}  # the outputs of Slices -> what computes them
        gone = set[str]()
        for node in self._graph.nodes:
            pieces = self._pieces(node)
            if pieces and any(self._becomes_bytes(piece.node.output) for piece in pieces):
                gone.add(node.output)
                replaced |= {piece.node.output: self._part(node, piece) for piece in pieces}
        nodes = [new for node in self._graph.nodes for new in replaced.get(node.output, [node]) if node.output not in gone]
        read = {name for node in nodes for name in node.inputs} | {*self._graph.outputs}
        kept = tuple(node for node in nodes if node.op != "View" or node.output in read)  # those between a product and its Slices are not
        return self._graph._replace(nodes=kept, constants=self._constants, quantized=self._quantized, tensors=self._tensors)

    def _readers(self, name: str) -> list[Node]:
        """The nodes that read a value; none if it is an output of the graph."""
        places = self._users.get(name, [])
        return [self._graph.nodes[at] for at in places] if len(self._graph.nodes) not in places else []

    def _pieces(self, node: Node) -> list[_Piece]:
        """The Slices that divide the columns of a product of bytes; none if something else reads it."""
        if node.op != "Linear" or not self._is_quantised(node):
            return []
        name, readers = node.output, self._readers(node.output)
        while len(readers) == 1 and readers[0].op == "View":
            name = readers[0].output
            readers = self._readers(name)
        if len(readers) < 2 or any(one.op != "Slice" for one in readers):
            return []
        shape, columns = self._tensors[name].shape, self._tensors[node.output].shape[-1]
        found = [_piece(one, shape, columns) for one in readers]
        return [one for one in found if one] if all(found) else []

    def _is_quantised(self, node: Node) -> bool:
        made = self._makers.get(node.inputs[0])
        reads_bytes = made is not None and self._graph.nodes[made].op == "Dequantize"
        held = [name in self._graph.constants for name in node.inputs[1:]]
        return reads_bytes and all(held) and node.inputs[1] in self._quantized and not node.attributes.get("activation")

    def _becomes_bytes(self, name: str) -> bool:
        readers = self._readers(name)
        while len(readers) == 1 and readers[0].op in _BETWEEN:
            readers = self._readers(readers[0].output)
        return len(readers) == 1 and readers[0].op == "Quantize"

    def _part(self, node: Node, piece: _Piece) -> list[Node]:
        names = [self._rows(name, piece) for name in node.inputs[1:]]
        output, (*rows, _) = f"{piece.node.output}:columns", self._tensors[node.output].shape
        self._tensors[output] = Tensor((*rows, piece.last - piece.first), self._tensors[node.output].dtype)
        part = node._replace(name=f"{node.name}:{piece.first}", inputs=(node.inputs[0], *names), outputs=(output,))
        return [part, Node("View", piece.node.name, (output,), piece.node.outputs)]

    def _rows(self, name: str, piece: _Piece) -> str:
        """Weights or biases of a part's columns."""
        part, rows = f"{name}:{piece.first}:{piece.last}", slice(piece.first, piece.last)
        self._constants[part] = _cut(self._graph.constants[name], rows)
        self._tensors[part] = Tensor(self._constants[part].shape, self._constants[part].dtype)
        if (held := self._graph.quantized.get(name)) is not None and not held.block:
            along = held.axis % held.values.ndim == 0
            scale, zero = (_cut(one, rows) if one.size > 1 and along else one for one in (held.scale, held.zero))
            self._quantized[part] = Quantized(_cut(held.values, rows), scale, zero, held.axis)
        return part


def _cut(array: Array, rows: slice) -> Array:
    return np.ascontiguousarray(array[rows])


def _piece(node: Node, shape: tuple[int, ...], columns: int) -> _Piece | None:
    """The columns that a Slice of a product, seen with this shape, takes; None if they are no neighbours, or not those of all rows."""
    ends = [axis for axis in range(len(shape)) if prod(shape[axis:]) == columns]
    slices = node.attributes["slices"]
    if not ends or any(one != slice(0, size, 1) for one, size in zip(slices[: ends[-1]], shape, strict=False)):
        return None
    taken = np.arange(columns).reshape(shape[ends[-1] :])[tuple(slices[ends[-1] :])].ravel()
    if not taken.size or (np.diff(taken) != 1).any():
        return None
    return _Piece(node, int(taken[0]), int(taken[-1]) + 1)


def _with_views_first(graph: Graph) -> Graph:
    """Views that drop axes of size 1 of a transposed value stand before its Transpose."""
    users, makers, tensors, nodes = graph.users(), graph.makers(), dict(graph.tensors), list(graph.nodes)
    for at, view in enumerate(graph.nodes):
        place = makers.get(view.inputs[0]) if view.op == "View" else None
        turn = nodes[place] if place is not None else None
        if place is None or turn is None or turn.op != "Transpose" or "reference" in turn.attributes or len(users[turn.output]) > 1:
            continue
        kept = _kept_axes(turn, view, tensors)
        if kept is None:
            continue
        axes, x, name = sorted(kept), tensors[turn.inputs[0]], f"{view.output}:dropped"
        tensors[name] = x._replace(shape=tuple(x.shape[axis] for axis in axes))
        nodes[place] = Node("View", view.name, turn.inputs, (name,))
        nodes[at] = Node("Transpose", turn.name, (name,), view.outputs, {"perm": tuple(axes.index(axis) for axis in kept)})
    return graph._replace(nodes=tuple(nodes), tensors=tensors)


def _kept_axes(turn: Node, view: Node, tensors: Mapping[str, Tensor]) -> list[int] | None:
    """The axes of a Transpose's input, in the order of its result, that are left when a View drops axes of size 1; None of other Views."""
    perm, shape = [*turn.attributes["perm"]], tensors[turn.output].shape
    left, kept = [*tensors[view.output].shape], list[int]()
    for axis, size in zip(perm, shape, strict=True):
        if left and size == left[0]:
            kept.append(axis)
            left.pop(0)
        elif size != 1:
            return None
    return kept if not left and len(kept) < len(perm) else None
