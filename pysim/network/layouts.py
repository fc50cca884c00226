# SPDX-License-Identifier: Apache-2.0
"""The layout of each value of a network, planes (NCHW) or blocks of channels (NCHWc), labels together with the layers' algorithms.

The input and the output of each node have one of the two labels:

    Conv                  planes to planes, blocks to blocks or planes to blocks; the cost is the predicted time of its best plan
    LAYOUT_PRESERVING     either, the same for input and output: pools, additions, scales of channels, activations, slices of whole blocks
    Transpose             between rows of channels and either (`pysim.network.lowering.images`)
    other nodes           planes

A value of 1x1 pixels is the same in both layouts. One whose channels are no whole blocks is made in blocks with more of them
(`pysim.network.halves.whole_blocks`), not converted to blocks; read in planes it is converted and cut.

Of a network of bf16 (`Graph.narrow`) blocks have bf16 and planes float32, so the same labels choose types: a conversion rounds or widens.
Only values that are bf16 in the model are in blocks.

    seconds = sum over nodes of cost(input label, output label) + sum of layout conversions, each counted once for all its readers

A minimum cut minimises such a sum of two labels exactly (Greig, Porteous and Seheult, "Exact maximum a posteriori estimation for binary
images", 1989; for which functions: Kolmogorov and Zabih, PAMI 26(2), 2004). The capacity of the edge from "planes" to x is the cost of x in
blocks, that of the edge from x to y the cost of y in blocks while x is in planes. A conversion with several readers has its own label.

Worked number: a 1x1 layer between layers in planes is 20 us faster in blocks, and a conversion takes 15 us: it stays in planes. Two such
layers in a row save 40 us for 30.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from pysim.network.arena import view_offset
from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Graph, Node
from pysim.network.halves.whole_blocks import can_widen, widened
from pysim.network.lowering.images import TO_IMAGES, TO_ROWS
from pysim.runtime.integer_steps import BYTES
from pysim.runtime.operators import BITS

_FORBIDDEN = 1e4  # seconds, above the time of any network
LAYOUT_PRESERVING = (
    "Add", "Affine", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu", "Sigmoid", "Slice",
    "Take",
)  # fmt: skip
_OF_ALL_CHANNELS = ("Concat", "Slice", "View")  # of these, those that more channels would change
_OF_WORDS = ("Take",)  # of these native operators that have no form for bf16
# The same of bytes, whose channels are one block: they lie last
OF_BYTES = ("Concat", "IntegerConv", "IntegerPair", "IntegerPool", "Table", "View")

Seconds = Callable[[Node, int, int], float | None]  # seconds of a node, by the block sizes of its input and output; None: no plan
Conversion = Callable[[str, bool], float]  # seconds to convert a value to blocks (True) or to planes


class LayoutChoice(NamedTuple):
    """A graph with its layout conversions as nodes (Reorder), and the names of the values in blocks."""

    graph: Graph
    blocked: frozenset[str]


def choose_layouts(graph: Graph, block: int, seconds: Seconds, conversion: Conversion, widens: bool = False) -> LayoutChoice:
    """The graph with the fastest predicted layouts; nodes with an output in blocks have the attribute `blocks`, the block sizes (input,
    output). `widens`: values may have more channels than in the graph."""
    if block == 1 and not any(node.op == "IntegerConv" for node in graph.nodes):
        return LayoutChoice(graph, frozenset())
    wide = can_widen(graph, block) if widens and block > 1 else frozenset[str]()
    cut = _Cut(graph, block, seconds, conversion, wide)
    choice = _with_conversions(graph, block, cut.labels(), wide)
    return _narrowed(choice) if graph.narrow else choice


def _narrowed(choice: LayoutChoice) -> LayoutChoice:
    """The values in blocks as bf16, and the convolutions that write them as such of bf16."""
    graph, tensors = choice.graph, dict(choice.graph.tensors)
    tensors |= {name: tensors[name]._replace(dtype=BITS) for name in choice.blocked}
    nodes = (
        node.having(problem=replace(node.attributes["problem"], dtype="bf16"))
        if node.op == "Conv" and "blocks" in node.attributes
        else node
        for node in graph.nodes
    )
    return choice._replace(graph=graph._replace(nodes=tuple(nodes), tensors=tensors))


class _Cut:
    """The flow network: an edge is cut if its source is in planes and its target in blocks."""

    def __init__(self, graph: Graph, block: int, seconds: Seconds, conversion: Conversion, wide: frozenset[str]) -> None:
        import networkx as nx  # here, because a saved network does not need it: half of its start

        self._graph, self._block, self._wide, self._flow = graph, block, wide, nx.DiGraph()
        self._makers, self._users = graph.makers(), graph.users()
        self._flow.add_nodes_from(("planes", "blocks"))
        for at, node in enumerate(graph.nodes):
            self._node(at, node, seconds)
        for name, users in self._users.items():
            if name and name not in graph.constants and name in graph.tensors:
                self._value(name, users, conversion)

    def _add_cost(self, source: Any, target: Any, seconds: float) -> None:
        """Adds the cost of source in planes and target in blocks."""
        if seconds > 0 and source != target:
            known = self._flow.get_edge_data(source, target, {"capacity": 0})["capacity"]
            self._flow.add_edge(source, target, capacity=known + round(seconds * 1e9))

    def _add_label_cost(self, label: Any, seconds: float) -> None:
        """Adds the cost of a label in blocks; a negative one is a cost of it in planes."""
        if seconds >= 0:
            self._add_cost("planes", label, seconds)
        else:
            self._add_cost(label, "blocks", -seconds)

    def _node(self, at: int, node: Node, seconds: Seconds) -> None:
        read, written = (at, "in"), (at, "out")
        if node.op == "Conv" and "reference" not in node.attributes:
            plain, both, out = (seconds(node, *blocks) for blocks in ((1, 1), (self._block, self._block), (1, self._block)))
            out = None if node.inputs[0] in node.inputs[RESIDUAL_INPUT:] else out  # a residual lies as the result
            a, d, b = plain or 0.0, _FORBIDDEN if both is None else both, _FORBIDDEN if out is None else out
            c = 2 * _FORBIDDEN  # blocks to planes; large enough that b + c >= a + d, which a cut requires
            self._add_label_cost(read, c - a)
            self._add_label_cost(written, d - c)
            self._add_cost(read, written, b + c - a - d)
            return
        if node.op == "IntegerMeans" and self._blocks(node.inputs[0]):  # to one pixel, the same in both
            self._add_label_cost(written, _FORBIDDEN)
            return
        if (image := self._image_of(node)) is not None:  # the other side is rows
            in_blocks, rows = (read, written) if image == node.inputs[0] else (written, read)
            self._add_label_cost(rows, _FORBIDDEN)
            blocked = seconds(node, self._block, 1) if in_blocks is read else seconds(node, 1, self._block)
            self._add_label_cost(in_blocks, (blocked or 0.0) - (seconds(node, 1, 1) or 0.0))
            return
        self._add_cost(read, written, _FORBIDDEN)
        self._add_cost(written, read, _FORBIDDEN)
        if self._preserves_layout(node):
            blocks = tuple(block_of(self._graph, name, self._block) for name in (node.inputs[0], node.output))
            plain, both = seconds(node, 1, 1) or 0.0, seconds(node, *blocks)
            self._add_label_cost(read, min(_FORBIDDEN if both is None else both, _FORBIDDEN) - plain)
        else:
            self._add_label_cost(read, _FORBIDDEN)

    def _image_of(self, node: Node) -> str | None:
        """The side of a Transpose that may be in blocks while the other is rows of channels."""
        if node.op != "Transpose" or self._graph.narrow or "reference" in node.attributes:
            return None
        name = {TO_IMAGES: node.output, TO_ROWS: node.inputs[0]}.get(tuple(node.attributes["perm"]))
        if name is None or name in self._wide or not self._blocks(name):  # rows have no channels beside those of the value
            return None
        return name if self._graph.tensors[name].native else None

    def _preserves_layout(self, node: Node) -> bool:
        """Whether a node can work in either layout."""
        tensors, values = self._graph.tensors, node.inputs[:1] if node.op in ("Affine", "Take") else node.inputs
        of_bytes = tensors[node.output].dtype in BYTES
        if (
            node.op not in (OF_BYTES if of_bytes else LAYOUT_PRESERVING)
            or (self._graph.narrow and node.op in _OF_WORDS)
            or "reference" in node.attributes
            or not all(self._blocks(name) for name in (*values, *node.outputs))
            or (node.op in _OF_ALL_CHANNELS and any(name in self._wide for name in (*values, *node.outputs)))
        ):
            return False
        if node.op == "View":
            return tensors[values[0]].shape == tensors[node.output].shape
        if node.op == "Concat":
            return bool(node.attributes["axis"] == 1)
        if node.op == "Take":  # rows or columns
            return bool(node.attributes["axis"] >= 2)
        if node.op == "Slice":  # whole blocks, one piece
            return view_offset(self._graph, node) is not None and node.attributes["slices"][1].start % self._block == 0
        like = [tensors[name] == tensors[node.output] for name in values]
        if node.op == "IntegerPair":  # of either kind of bytes
            like = [tensors[name].shape == tensors[node.output].shape for name in values]
        if node.op in ("IntegerPair", "Mul"):  # of equal shapes, or by a number for each channel
            return any(like) and all(one or self._is_single_pixel(name) for one, name in zip(like, values, strict=True))
        return all(like) or node.op != "Add"

    def _blocks(self, name: str) -> bool:
        return name not in self._graph.constants and (name in self._wide or in_blocks(self._graph, name, self._block))

    def _is_single_pixel(self, name: str) -> bool:
        return self._blocks(name) and _of_single_pixel(self._graph, name)

    def _value(self, name: str, users: list[int], conversion: Conversion) -> None:
        if not self._graph.narrow and name not in self._wide and self._is_single_pixel(name):
            return
        maker = self._makers.get(name)
        made: Any = "planes" if maker is None else (maker, "out")
        into, back = ("into", name), ("back", name)
        if name in self._wide:  # cut from images one after the other
            alone = self._graph.tensors[name].shape[0] == 1
            self._add_cost(made, into, _FORBIDDEN)
            self._add_cost(back, made, 0.0 if self._is_single_pixel(name) else conversion(name, False) if alone else _FORBIDDEN)
        elif in_blocks(self._graph, name, self._block):
            self._add_cost(made, into, conversion(name, True))
            self._add_cost(back, made, conversion(name, False))
        else:
            self._add_cost("planes", made, _FORBIDDEN)
            self._add_cost(made, into, _FORBIDDEN)
        for user in users:
            reader: Any = "planes" if user == len(self._graph.nodes) else self._reader(user, name)
            self._add_cost(into, reader, _FORBIDDEN)
            self._add_cost(reader, back, _FORBIDDEN)

    def _reader(self, user: int, name: str) -> tuple[int, str]:
        """The label of a node's input; a residual has the layout of the output."""
        node = self._graph.nodes[user]
        residual = node.op == "Conv" and name in node.inputs[RESIDUAL_INPUT:] and name != node.inputs[0]
        return user, "out" if residual else "in"

    def labels(self) -> dict[tuple[int, str], bool]:
        """(node, "in" or "out") -> whether in blocks, of least cost."""
        import networkx as nx

        _, (_, blocks) = nx.minimum_cut(self._flow, "planes", "blocks")
        return {(at, side): (at, side) in blocks for at in range(len(self._graph.nodes)) for side in ("in", "out")}


def block_of(graph: Graph, name: str, block: int) -> int:
    """Channels in a block of a value: all of an image of bytes."""
    tensor = graph.tensors[name]
    return tensor.shape[1] if tensor.dtype in BYTES and len(tensor.shape) == 4 else block


def in_blocks(graph: Graph, name: str, block: int) -> bool:
    """Whether a value can be in blocks."""
    tensor = graph.tensors.get(name)
    if graph.narrow and (name not in graph.narrow or tensor is None or tensor.dtype.itemsize != 4):
        return False
    if tensor is None or len(tensor.shape) != 4 or not (tensor.native or tensor.dtype in BYTES):
        return False
    own = block_of(graph, name, block)
    return own > 1 and tensor.shape[1] % own == 0


def _of_single_pixel(graph: Graph, name: str) -> bool:
    """Whether a value has one pixel per channel, so that both layouts are the same."""
    return graph.tensors[name].shape[2:] == (1, 1)


def _with_conversions(graph: Graph, block: int, labels: Mapping[tuple[int, str], bool], wide: frozenset[str]) -> LayoutChoice:
    nodes, tensors, blocked, more = list[Node](), dict(graph.tensors), set[str](), set[str]()
    converted: dict[tuple[str, bool], str] = {}  # (value, whether in blocks) -> its name in that layout
    makers = graph.makers()

    def conversion(name: str, wanted: bool) -> Iterator[Node]:
        """The node that converts a value, unless it has that layout or was converted before."""
        made = labels[makers[name], "out"] if name in makers else False
        if name in graph.constants or name not in graph.tensors or made == wanted or (name, wanted) in converted:
            return
        converted[name, wanted] = new = name
        if graph.narrow or not (_of_single_pixel(graph, name) and (name in wide or in_blocks(graph, name, block))):
            converted[name, wanted] = new = f"{name}:{'blocks' if wanted else 'planes'}"
            tensors[new] = tensors[name]
            blocked.update({new} if wanted else ())
            yield Node("Reorder", new, (name,), (new,), {"block": block_of(graph, name, block), "to_planes": not wanted})
        if name in wide:
            more.add(new)
            converted[name, wanted] = own = f"{name}:own"
            tensors[own] = tensors[name]
            yield Node("Slice", own, (new,), (own,), {"slices": tuple(slice(0, size, 1) for size in tensors[name].shape)})

    def named(name: str, wanted: bool) -> str:
        return converted.get((name, wanted), name)

    for at, node in enumerate(graph.nodes):
        read, written = labels[at, "in"], labels[at, "out"]
        sides = [written if node.op == "Conv" and place >= RESIDUAL_INPUT else read for place in range(len(node.inputs))]
        for name, side in zip(node.inputs, sides, strict=True):
            nodes += conversion(name, side)
        inputs = tuple(named(name, side) for name, side in zip(node.inputs, sides, strict=True))
        blocked.update(node.outputs if written else ())
        more.update(wide.intersection(node.outputs if written else ()))
        blocks = (block_of(graph, node.inputs[0], block) if read else 1, block_of(graph, node.output, block) if written else 1)
        nodes.append(node._replace(inputs=inputs).having(blocks=blocks) if written or read else node._replace(inputs=inputs))
    for name in graph.outputs:
        nodes += conversion(name, False)
    outputs = tuple(named(name, False) for name in graph.outputs)
    laid = graph._replace(nodes=tuple(nodes), outputs=outputs, tensors=tensors)
    return LayoutChoice(widened(laid, more, block) if more else laid, frozenset(blocked))
