# SPDX-License-Identifier: Apache-2.0
"""The memory of a network's values: one arena, planned before anything runs.

A value needs no memory of its own if it is, in this order of preference,
    a view              the reshaped input, or one contiguous piece of it (a slice)
    a part              the input of a concatenation that can be computed directly in the concatenation's result, so nothing is copied
    written in place    the result of an operator that reads element i before it writes element i, over an input that nothing reads later

All other values live from their first write to their last read. The largest ones get their offsets first, each the lowest offset that is
free during its lifetime (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Offsets are
multiples of a cache line.

Worked number: a chain x -> a -> b -> c of equal sizes needs memory for two values, or for one if every operator works in place.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pysim.network.graph import Graph, Node
from pysim.runtime.integer_steps import BYTES

_LINE_BYTES = 64
Name = TypeVar("Name", bound=Hashable)


class Buffers(NamedTuple):
    """Byte offsets of values in an arena of `nbytes`; `joined`: (result, part) of each part that a concatenation need not copy."""

    offsets: dict[str, int]
    nbytes: int
    joined: frozenset[tuple[str, str]]


class Lifetime:
    """Memory, and the first and last node that use it."""

    def __init__(self, nbytes: int, first: int, last: int) -> None:
        self.nbytes, self.first, self.last = nbytes, first, last


def plan_buffers(graph: Graph, overwritten: Callable[[Node], Sequence[str]]) -> Buffers:
    """Offsets of all values that nodes compute; `overwritten`: the inputs of an operator of which it may overwrite one, of the result's
    size."""
    aliases, joined = _find_aliases(graph, overwritten)
    users, lifetimes = graph.users(), dict[str, Lifetime]()
    for at, node in enumerate(graph.nodes):
        for name in node.outputs:
            root, _ = _resolve(aliases, name)
            if not name or root not in graph.tensors or root in graph.inputs or root in graph.constants:
                continue
            last = max((at, *users.get(name, ())))
            lifetime = lifetimes.setdefault(root, Lifetime(graph.tensors[root].nbytes, at, last))
            lifetime.first, lifetime.last = min(lifetime.first, at), max(lifetime.last, last)
    roots, nbytes = assign_offsets(lifetimes)
    offsets = {}
    for node in graph.nodes:
        for name in node.outputs:
            root, within = _resolve(aliases, name)
            if root in roots:
                offsets[name] = roots[root] + within
    return Buffers(offsets, nbytes, frozenset(joined))


_Aliases = dict[str, tuple[str, int]]  # value -> (the value whose memory contains it, offset in bytes)


def _resolve(aliases: _Aliases, name: str) -> tuple[str, int]:
    """The value that owns the memory of this one, and the offset in it."""
    offset = 0
    while name in aliases:
        name, more = aliases[name]
        offset += more
    return name, offset


def _find_aliases(graph: Graph, overwritten: Callable[[Node], Sequence[str]]) -> tuple[_Aliases, set[tuple[str, str]]]:
    """All aliases, and (result, part) of the parts that concatenations need not copy."""
    aliases, joined = _Aliases(), set[tuple[str, str]]()
    users, makers = graph.users(), graph.makers()
    viewed = set()
    for node in graph.nodes:
        if (offset := view_offset(graph, node)) is not None:
            viewed.add(node.inputs[0])
            aliases[node.output] = (node.inputs[0], offset)
    for node in graph.nodes:
        if node.op == "Concat":
            _alias_parts(graph, node, makers, aliases, joined)
    for at, node in enumerate(graph.nodes):
        able = overwritten(node)
        if not able or node.output in aliases or node.output in graph.outputs:
            continue
        for name in able:
            owns_memory = name in makers and name not in aliases and name not in viewed and graph.nodes[makers[name]].op != "Concat"
            read_last = users[name][-1] == at and users[name].count(at) == 1
            if owns_memory and read_last and graph.tensors[name] == graph.tensors[node.output]:
                aliases[node.output] = (name, 0)
                break
    return aliases, joined


def view_offset(graph: Graph, node: Node) -> int | None:
    """The byte offset of a node's result in the memory of its input: 0 of a View, of a contiguous Slice its begin; None of other nodes."""
    if node.op == "View":
        return 0
    if node.op != "Slice":
        return None
    x, y = graph.tensors[node.inputs[0]], graph.tensors[node.output]
    cut = [axis for axis, (size, left) in enumerate(zip(x.shape, y.shape, strict=True)) if size != left]
    axis = cut[0] if cut else 0
    if len(cut) > 1 or math.prod(x.shape[:axis]) != 1 or any(one.step != 1 for one in node.attributes["slices"]):
        return None
    offset: int = node.attributes["slices"][axis].start * math.prod(x.shape[axis + 1 :]) * x.dtype.itemsize
    return offset


def _alias_parts(graph: Graph, node: Node, makers: dict[str, int], aliases: _Aliases, joined: set[tuple[str, str]]) -> None:
    """Makes the parts of a concatenation aliases of its result, if all sizes before its axis are 1, so that each part is contiguous
    there. With channels last pixels are such sizes."""
    (shape, dtype), axis = graph.tensors[node.output], node.attributes["axis"]
    channels_last = dtype in BYTES and node.attributes.get("blocks", (1, 1))[1] > 1
    if math.prod((*shape[:axis], *(shape[axis + 1 :] if channels_last else ()))) != 1:
        return
    offset = 0
    for name in node.inputs:
        if name in makers and name not in aliases and name not in graph.outputs and node.inputs.count(name) == 1:
            aliases[name] = (node.output, offset)
            joined.add((node.output, name))
        offset += graph.tensors[name].nbytes


def assign_offsets(lifetimes: Mapping[Name, Lifetime], alignment: int = _LINE_BYTES) -> tuple[dict[Name, int], int]:
    """Offsets at which memory with overlapping lifetimes does not overlap, and the size of the arena."""
    assigned: list[tuple[int, Lifetime]] = []
    offsets: dict[Name, int] = {}
    nbytes = 0
    for name in sorted(lifetimes, key=lambda name: -lifetimes[name].nbytes):
        new, at = lifetimes[name], 0
        alive = [(start, old) for start, old in assigned if old.first <= new.last and new.first <= old.last]
        for start, old in sorted(alive, key=lambda item: item[0]):
            if at + new.nbytes <= start:
                break
            at = max(at, -(-(start + old.nbytes) // alignment) * alignment)
        assigned.append((at, new))
        offsets[name], nbytes = at, max(nbytes, at + new.nbytes)
    return offsets, nbytes
