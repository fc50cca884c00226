# SPDX-License-Identifier: Apache-2.0
"""What a captured graph computes from parameters alone is computed once, and again after one of these parameters changed: standardized
weights (NFNet), tables of position biases (Swin).

An operator is folded if it does nothing but compute its result, from parameters and folded values that the graph does not write to, under
the settings with which the graph is called, and if no result of the graph lies in the memory of its result. Views alone are left as they
are: they cost nothing.
"""

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from pysim.caches import LruCache
from pysim.torch.capture.effects import Effects, is_pure, makes_memory, name_of_operator
from pysim.torch.parameters import ParameterCache, is_traced

_CACHE_SIZE = 32  # models that share the graph


class FoldedParameters(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """The values that `graph` computes from parameters."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.derived = ParameterCache(_CACHE_SIZE)
        self.__dict__["_graph"] = graph  # not a submodule
        self._last: LruCache[tuple[Any, ...]] = LruCache(_CACHE_SIZE)

    def forward(self, *parameters: Any) -> tuple[Any, ...]:
        if is_traced():  # parameters may carry tangents
            return tuple(self.__dict__["_graph"](*parameters))
        values: tuple[Any, ...] = self.derived.get("folded", parameters, lambda: self._computed(parameters))
        return values

    __call__ = forward  # skips nn.Module's search for hooks; none can be registered here

    def _computed(self, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
        """Later values are written into the same tensors, whose versions tell layers that prepared them to prepare them again."""
        with torch.inference_mode(False):  # tensors of inference mode have no versions
            values: tuple[Any, ...] = self.__dict__["_graph"](*(one.detach() for one in parameters))
            key = (*map(id, parameters),)  # models that share some of them have tensors of their own
            last = self._last.get(key)
            alike = last is not None and all(
                (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)
                for a, b in zip(last, values, strict=True)
            )
            if last is None or not alike:
                return self._last.put(key, values)
            for old, new in zip(last, values, strict=True):
                old.copy_(new)
            return last


def foldable(graph: fx.Graph, effects: Effects, parameters: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes that may be folded; `parameters`: the inputs of the graph that are the same tensors in each call."""
    results = next(node for node in reversed(graph.nodes) if node.op == "output").all_input_nodes
    kept = effects.written.union(*(effects.aliases[one] for one in results))
    known, found = {one for one in parameters if one not in effects.written}, set[fx.Node]()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        example = node.meta.get("example_value")
        if node.op not in ("call_function", "call_method") or not inputs or not all(one in known for one in inputs):
            continue
        if name_of_operator(node) in ("dequantize_per_channel", "dequantize_per_tensor"):  # networks compute with the integers
            continue
        if isinstance(example, torch.Tensor) and is_pure(node) and not effects.regions[node] and not effects.aliases[node] & kept:
            found.add(node)
            known.add(node)
    return found


def fold(module: fx.GraphModule, may: Collection[fx.Node]) -> fx.Node | None:
    """Replaces these nodes, as far as the graph still has them, by one that computes the values that other nodes read."""
    nodes = [node for node in module.graph.nodes if node in may]
    made = set[fx.Node]()  # by an operator, not only views
    for node in nodes:
        if makes_memory(node) or any(one in made for one in node.all_input_nodes):
            made.add(node)
    read = [node for node in nodes if node in made and any(user not in may for user in node.users)]
    if not read:
        return None
    needed = {*read}
    for node in reversed(nodes):
        if any(user in needed for user in node.users):
            needed.add(node)
    inputs = list(dict.fromkeys(one for node in nodes if node in needed for one in node.all_input_nodes if one not in needed))
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for one in inputs:
        copies[one] = graph.placeholder(one.name)
    for node in nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, lambda one: copies[one])
    graph.output(tuple(copies[node] for node in read))
    module.add_module("pysim_folded", FoldedParameters(fx.GraphModule(torch.nn.Module(), graph)))
    with module.graph.inserting_before(nodes[0]):
        folded = module.graph.call_module("pysim_folded", tuple(inputs))
    with module.graph.inserting_after(folded):
        for number, node in enumerate(read):
            value = module.graph.call_function(operator.getitem, (folded, number))
            value.meta = dict(node.meta)
            node.replace_all_uses_with(value, lambda user: user not in needed)
    for node in reversed(nodes):
        if node in needed:
            module.graph.erase_node(node)
    return folded
