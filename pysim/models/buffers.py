# SPDX-License-Identifier: Apache-2.0
"""Where every value of a network lies: one arena, planned before anything runs.

Three ways to need no memory of one's own, in this order:
    view        a value that is another one under another shape, or one piece of its memory (a slice), lies where that does
    part        what a concatenation joins lies in its result already, where each part is one piece of memory there: nothing is copied
    in place    an operator that writes element i after it has read element i may write over an input that nobody reads later

Whatever is left lives from its first write to its last read, and gets the lowest place that is free for that long, the largest values
first (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Places begin on cache lines.

Worked number: a chain x -> a -> b -> c of equal sizes needs two places, one if every operator may work in place.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

from pysim.models.graph import Graph, Node

_LINE_BYTES = 64
Name = TypeVar("Name", bound=Hashable)


class Buffers(NamedTuple):
    """Byte offsets of values in an arena of `nbytes`; `joined` has (result, part) of what a concatenation need not copy."""

    offsets: dict[str, int]
    nbytes: int
    joined: frozenset[tuple[str, str]]


class Lifetime:
    """Memory that several values share, and when the first of them is written and the last one read."""

    def __init__(self, nbytes: int, first: int, last: int) -> None:
        self.nbytes, self.first, self.last = nbytes, first, last


def planned(graph: Graph, in_place: Callable[[Node], bool]) -> Buffers:
    """Places for what the nodes make; `in_place` says of an operator whether it may write over an input of the same size."""
    lying, joined = _shared(graph, in_place)
    users, roots = graph.users(), dict[str, Lifetime]()
    for at, node in enumerate(graph.nodes):
        for name in node.outputs:
            root, _ = _root(lying, name)
            if not name or root not in graph.tensors or root in graph.inputs or root in graph.constants:
                continue
            last = max((at, *users.get(name, ())))
            one = roots.setdefault(root, Lifetime(graph.tensors[root].nbytes, at, last))
            one.first, one.last = min(one.first, at), max(one.last, last)
    places, nbytes = placed(roots)
    offsets = {}
    for node in graph.nodes:
        for name in node.outputs:
            root, within = _root(lying, name)
            if root in places:
                offsets[name] = places[root] + within
    return Buffers(offsets, nbytes, frozenset(joined))


def _root(lying: dict[str, tuple[str, int]], name: str) -> tuple[str, int]:
    """The value whose memory a value lies in, and how many bytes in."""
    offset = 0
    while name in lying:
        name, more = lying[name]
        offset += more
    return name, offset


def _shared(graph: Graph, in_place: Callable[[Node], bool]) -> tuple[dict[str, tuple[str, int]], set[tuple[str, str]]]:
    """value -> (the value that it lies in, bytes in), and the parts that a concatenation need not copy."""
    lying: dict[str, tuple[str, int]] = {}
    joined: set[tuple[str, str]] = set()
    users, makers = graph.users(), graph.makers()
    viewed = set()
    for node in graph.nodes:
        if (offset := offset_in(graph, node)) is not None:
            viewed.add(node.inputs[0])
            lying[node.output] = (node.inputs[0], offset)
    for node in graph.nodes:
        if node.op == "Concat":
            _join(graph, node, makers, lying, joined)
    for at, node in enumerate(graph.nodes):
        if not in_place(node) or node.output in lying or node.output in graph.outputs:
            continue
        for name in node.inputs:
            mine = name in makers and name not in lying and name not in viewed and graph.nodes[makers[name]].op != "Concat"
            if mine and users[name] == [at] and graph.tensors[name] == graph.tensors[node.output]:
                lying[node.output] = (name, 0)
                break
    return lying, joined


def offset_in(graph: Graph, node: Node) -> int | None:
    """Bytes from the beginning of its input at which the result of a View lies, or of a Slice that is one piece; None of another node."""
    if node.op == "View":
        return 0
    if node.op != "Slice":
        return None
    x, y = graph.tensors[node.inputs[0]], graph.tensors[node.output]
    cut = [at for at, (size, left) in enumerate(zip(x.shape, y.shape, strict=True)) if size != left]
    first = cut[0] if cut else 0
    if len(cut) > 1 or math.prod(x.shape[:first]) != 1 or any(one.step != 1 for one in node.attributes["slices"]):
        return None
    offset: int = node.attributes["slices"][first].start * math.prod(x.shape[first + 1 :]) * x.dtype.itemsize
    return offset


def _join(graph: Graph, node: Node, makers: dict[str, int], lying: dict[str, tuple[str, int]], joined: set[tuple[str, str]]) -> None:
    """Lets the parts of a concatenation lie in its result, where what stands before its axis is 1."""
    shape, axis = graph.tensors[node.output].shape, node.attributes["axis"]
    if math.prod(shape[:axis]) != 1:
        return
    offset = 0
    for name in node.inputs:
        if name in makers and name not in lying and name not in graph.outputs and node.inputs.count(name) == 1:
            lying[name] = (node.output, offset)
            joined.add((node.output, name))
        offset += graph.tensors[name].nbytes


def placed(roots: Mapping[Name, Lifetime], boundary: int = _LINE_BYTES) -> tuple[dict[Name, int], int]:
    """Offsets, at multiples of `boundary`, of memory that is needed at overlapping times, apart; and where the last one ends."""
    taken: list[tuple[int, Lifetime]] = []
    places: dict[Name, int] = {}
    nbytes = 0
    for name in sorted(roots, key=lambda name: -roots[name].nbytes):
        one, at = roots[name], 0
        for start, other in sorted(((s, r) for s, r in taken if r.first <= one.last and one.first <= r.last), key=lambda item: item[0]):
            if at + one.nbytes <= start:
                break
            at = max(at, -(-(start + other.nbytes) // boundary) * boundary)
        taken.append((at, one))
        places[name], nbytes = at, max(nbytes, at + one.nbytes)
    return places, nbytes
