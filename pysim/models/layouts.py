# SPDX-License-Identifier: Apache-2.0
"""Which values of a network lie in blocks of channels (NCHWc): every layer's algorithm and layout are chosen together.

Each value is planes (0) or blocks (1), and each node reads and writes one or the other:

    Conv       seconds of its best plan from planes to planes, blocks to blocks, planes to blocks
    same       pools, sums, factors of channels, activations, slices of whole blocks, rows: what they write lies as what they read
    else       planes; a value of 1x1 pixels is both at once

seconds = sum of nodes(read, written) + changes of layout, each once whoever reads what it gives. Such a sum of two labels is least at a
minimum cut (Greig, Porteous and Seheult, "Exact maximum a posteriori estimation for binary images", 1989; which functions a cut can be:
Kolmogorov and Zabih, PAMI 26(2), 2004): an edge from planes to x costs what x in blocks costs, one from x to y what y in blocks behind x in
planes does. A change for several readers has a label of its own, which is that of any of them that differs.

Worked number: a 1x1 layer is 20 us faster in blocks, its neighbours are planes, and each change takes 15 us: it stays. Two such layers in a
row save 40 us for 30.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import networkx as nx

from pysim.models.buffers import view_offset
from pysim.models.fusion import RESIDUAL_INPUT
from pysim.models.graph import Graph, Node

_NEVER = 10**13  # nanoseconds, above any sum of layers
SAME = frozenset(
    {"Add", "Affine", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Sigmoid", "Slice", "Take"}
)

Seconds = Callable[[Node, int, int], float | None]  # of a node whose input and output have blocks of so many channels; None: no plan
Change = Callable[[str, bool], float]  # seconds to bring a value into blocks, or back to planes


class Laid(NamedTuple):
    """A graph whose changes of layout are nodes (Reorder), and which values lie in blocks."""

    graph: Graph
    blocked: frozenset[str]


def laid_out(graph: Graph, block: int, seconds: Seconds, change: Change) -> Laid:
    """The graph with the layouts of least predicted time; nodes that read or write blocks of more than one channel have `blocks`."""
    if block == 1:
        return Laid(graph, frozenset())
    found = _Cut(graph, block, seconds, change)
    return _rewritten(graph, block, found.chosen())


class _Cut:
    """The network as a flow: an edge is cut where its first end is planes and its second one blocks."""

    def __init__(self, graph: Graph, block: int, seconds: Seconds, change: Change) -> None:
        self._graph, self._block, self._flow = graph, block, nx.DiGraph()
        self._makers, self._users = graph.makers(), graph.users()
        self._flow.add_nodes_from(("planes", "blocks"))
        for at, node in enumerate(graph.nodes):
            self._node(at, node, seconds)
        for name, users in self._users.items():
            if name and name not in graph.constants and name in graph.tensors:
                self._value(name, users, change)

    def _pay(self, source: Any, target: Any, seconds: float) -> None:
        """Where source is planes and target blocks."""
        if seconds > 0 and source != target:
            known = self._flow.get_edge_data(source, target, {"capacity": 0})["capacity"]
            self._flow.add_edge(source, target, capacity=known + round(seconds * 1e9))

    def _unary(self, label: Any, seconds: float) -> None:
        """Where a label is blocks; below 0 where it is planes."""
        if seconds >= 0:
            self._pay("planes", label, seconds)
        else:
            self._pay(label, "blocks", -seconds)

    def _node(self, at: int, node: Node, seconds: Seconds) -> None:
        read, written = (at, "in"), (at, "out")
        never = _NEVER / 1e9
        if node.op == "Conv" and "reference" not in node.attributes:
            plain, both, out = (seconds(node, *blocks) for blocks in ((1, 1), (self._block, self._block), (1, self._block)))
            a, d, b = plain or 0.0, never if both is None else both, never if out is None else out
            c = 2 * never  # from blocks to planes; so that b + c >= a + d, which a cut needs
            self._unary(read, c - a)
            self._unary(written, d - c)
            self._pay(read, written, b + c - a - d)
            return
        self._pay(read, written, never)
        self._pay(written, read, never)
        if self._same(node):
            plain, both = (seconds(node, block, block) or 0.0 for block in (1, self._block))
            self._unary(read, both - plain)
        else:
            self._unary(read, never)

    def _same(self, node: Node) -> bool:
        """Whether a node can work on blocks as on planes."""
        tensors, values = self._graph.tensors, node.inputs[:1] if node.op in ("Affine", "Take") else node.inputs
        if node.op not in SAME or "reference" in node.attributes or not all(self._blocks(name) for name in (*values, *node.outputs)):
            return False
        if node.op == "Concat":
            return bool(node.attributes["axis"] == 1)
        if node.op == "Take":  # rows or columns
            return bool(node.attributes["axis"] >= 2)
        if node.op == "Slice":  # whole blocks, one piece
            return view_offset(self._graph, node) is not None and node.attributes["slices"][1].start % self._block == 0
        like = [tensors[name] == tensors[node.output] for name in values]
        if node.op == "Mul":  # or planes by a number each
            return any(like) and all(one or _pointlike(self._graph, name, self._block) for one, name in zip(like, values, strict=True))
        return all(like) or node.op != "Add"

    def _blocks(self, name: str) -> bool:
        return name not in self._graph.constants and in_blocks(self._graph, name, self._block)

    def _value(self, name: str, users: list[int], change: Change) -> None:
        if _pointlike(self._graph, name, self._block):
            return
        maker = self._makers.get(name)
        made: Any = "planes" if maker is None else (maker, "out")
        into, back = ("into", name), ("back", name)
        if in_blocks(self._graph, name, self._block):
            self._pay(made, into, change(name, True))
            self._pay(back, made, change(name, False))
        else:
            self._pay("planes", made, _NEVER / 1e9)
            self._pay(made, into, _NEVER / 1e9)
        for user in users:
            reader: Any = "planes" if user == len(self._graph.nodes) else self._reader(user, name)
            self._pay(into, reader, _NEVER / 1e9)
            self._pay(reader, back, _NEVER / 1e9)

    def _reader(self, user: int, name: str) -> tuple[int, str]:
        """The label that a node's input has; a residual lies as the output."""
        node = self._graph.nodes[user]
        residual = node.op == "Conv" and name in node.inputs[RESIDUAL_INPUT:] and name != node.inputs[0]
        return user, "out" if residual else "in"

    def chosen(self) -> dict[tuple[int, str], bool]:
        """(node, "in" or "out") -> whether in blocks."""
        _, (_, blocks) = nx.minimum_cut(self._flow, "planes", "blocks")
        return {(at, side): (at, side) in blocks for at in range(len(self._graph.nodes)) for side in ("in", "out")}


def in_blocks(graph: Graph, name: str, block: int) -> bool:
    """Whether a value can lie in blocks."""
    tensor = graph.tensors.get(name)
    return tensor is not None and tensor.native and len(tensor.shape) == 4 and tensor.shape[1] % block == 0


def _pointlike(graph: Graph, name: str, block: int) -> bool:
    """Whether a value is the same in both layouts."""
    tensor = graph.tensors[name]
    return in_blocks(graph, name, block) and tensor.shape[2:] == (1, 1)


def _rewritten(graph: Graph, block: int, chosen: Mapping[tuple[int, str], bool]) -> Laid:
    nodes, tensors, blocked = list[Node](), dict(graph.tensors), set[str]()
    there: dict[tuple[str, bool], str] = {}  # a value, in a layout -> what it is called there
    makers = graph.makers()

    def brought(name: str, wanted: bool) -> Iterator[Node]:
        """Brings a value into a layout, if it is not there yet."""
        made = chosen[makers[name], "out"] if name in makers else False
        if name in graph.constants or name not in graph.tensors or made == wanted or (name, wanted) in there:
            return
        there[name, wanted] = name
        if not _pointlike(graph, name, block):
            there[name, wanted] = called = f"{name}:{'blocks' if wanted else 'planes'}"
            tensors[called] = tensors[name]
            blocked.update({called} if wanted else ())
            yield Node("Reorder", called, (name,), (called,), {"block": block, "to_planes": not wanted})

    def named(name: str, wanted: bool) -> str:
        return there.get((name, wanted), name)

    for at, node in enumerate(graph.nodes):
        read, written = chosen[at, "in"], chosen[at, "out"]
        sides = [written if node.op == "Conv" and place >= RESIDUAL_INPUT else read for place in range(len(node.inputs))]
        for name, side in zip(node.inputs, sides, strict=True):
            nodes += brought(name, side)
        inputs = tuple(named(name, side) for name, side in zip(node.inputs, sides, strict=True))
        blocked.update(node.outputs if written else ())
        blocks = (block if read else 1, block if written else 1)
        nodes.append(node._replace(inputs=inputs).having(blocks=blocks) if written else node._replace(inputs=inputs))
    for name in graph.outputs:
        nodes += brought(name, False)
    outputs = tuple(named(name, False) for name in graph.outputs)
    return Laid(graph._replace(nodes=tuple(nodes), outputs=outputs, tensors=tensors), frozenset(blocked))
