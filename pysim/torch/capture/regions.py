# SPDX-License-Identifier: Apache-2.0
"""Captured graphs on a CPU: what native operators compute becomes networks (`NetworkLayer`), and PyTorch's operators run between them.

    segments   consecutive nodes that only compute values, or write to values that the segment made (`may_trace`)
    traced     as PyTorch's own operators (aten) without writes, shapes and strides known
    regions    of a traced segment: the largest sets of operators that have a native form (`capture/aten.py`) and do not wait for PyTorch's
               in between. Those that are expected to be faster by PyTorch are given back.

A view whose memory the caller, or an operator of PyTorch's, may share is made by PyTorch, of a network's result: which tensors share
memory, and with which strides, is as in PyTorch.

Worked number: ResNet-50's 176 nodes are one segment of 177 operators, one region and one network of 75 layers.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from threading import RLock
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx import _symbolic_trace, traceback
from torch.fx.experimental.proxy_tensor import make_fx

from pysim.errors import OperandError
from pysim.torch.capture.aten import is_view, lowered
from pysim.torch.capture.effects import Effects, may_trace, name_of_operator
from pysim.torch.capture.forms import ABSENT, Form, forms_in, module_name
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.layers.network_layer import NetworkLayer
from pysim.torch.precision import ModelAccuracy


class Segment(NamedTuple):
    """Nodes of a captured graph, what they read and what others read of them."""

    nodes: list[fx.Node]
    inputs: list[fx.Node]
    outputs: list[fx.Node]


class Networks(NamedTuple):
    """The networks of a graph, and what became of its operators."""

    layers: list[NetworkLayer]
    decisions: list[Decision]

    @property
    def held_bytes(self) -> int:
        """Bytes that the networks keep from call to call."""
        return sum(one.derived.held_bytes for one in self.layers)


def insert_networks(module: fx.GraphModule, effects: Effects, parameters: Mapping[fx.Node, Any], accuracy: ModelAccuracy) -> Networks:
    """`parameters`: the tensors of the nodes that are the same in each call. Nodes tell the forms of their values."""
    layers, decisions = list[NetworkLayer](), list[Decision]()
    for segment in _segments(module.graph, effects, parameters):  # which reads what those before it became
        try:
            traced = _traced(module, segment)
        except Exception as error:  # of an operator that does not know tensors without memory
            decisions.append(Decision(segment.nodes[0].name, "", "torch", f"it cannot be traced: {error}".partition("\n")[0]))
            continue
        regions = _Regions(traced, segment.inputs, parameters, accuracy)
        decisions += regions.decisions()
        if regions.chosen:
            layers += [layer for layer, *_ in regions.chosen.values()]
            _replace(module, segment, regions)
    return Networks(layers, decisions)


# Segments


def _segments(graph: fx.Graph, effects: Effects, parameters: Collection[fx.Node]) -> Iterator[Segment]:
    refused = set[fx.Node]()
    while True:
        runs: list[list[fx.Node]] = [[]]
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr", "output") or node in parameters:
                continue
            if node not in refused and _has_form(node) and may_trace(node, effects, {*runs[-1]}):
                runs[-1].append(node)
            elif runs[-1]:
                runs.append([])
        apart = [node for run in runs for node in run if not _is_tensor(node) and any(user not in run for user in node.users)]
        if not apart:
            break
        refused.update(apart)
    for run in filter(None, runs):
        inside = {*run}
        inputs = dict.fromkeys(one for node in run for one in node.all_input_nodes if one not in inside)
        yield Segment(run, [*inputs], [node for node in run if any(user not in inside for user in node.users)])


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("form"), Form)


def _has_form(node: fx.Node) -> bool:
    """Whether a node makes tensors of known forms of others, a tuple of such, or nothing."""
    made, read = node.meta.get("form"), [one.meta.get("form") for one in node.all_input_nodes]
    return all(parts and all(_is_known(one) for one in parts) for parts in map(forms_in, (made, *read)))


def _is_known(form: Any) -> bool:
    return form.is_known if isinstance(form, Form) else form == ABSENT


def _traced(module: fx.GraphModule, segment: Segment) -> fx.GraphModule:
    """A segment by PyTorch's own operators, each with the form of its value."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for one in segment.inputs:
        copies[one] = graph.placeholder(one.name)
    for node in segment.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[one] for one in segment.outputs))
    forms = [one.meta["form"] for one in segment.inputs]
    with torch.inference_mode(False), torch.no_grad(), FakeTensorMode(), traceback.preserve_node_meta():
        given = [form.empty() for form in forms]
        made = _without_writes(fx.GraphModule(module, graph), given)
        if any(map(_writes, made.graph.nodes)):  # operators that are made of others were taken apart behind `functionalize`
            made = _without_writes(made, given)
    if wrong := next(filter(_writes, made.graph.nodes), None):
        raise OperandError(f"{wrong.target} writes to its operands")
    for node in made.graph.nodes:
        node.meta = {"form": Form.of(node.meta.get("val")), "nn_module_stack": node.meta.get("nn_module_stack")}
    made.graph.eliminate_dead_code()
    return made


def _without_writes(module: fx.GraphModule, given: Sequence[Any]) -> fx.GraphModule:
    def run(*inputs: Any) -> Any:
        # PyTorch 2.11 tells by a global variable that a trace runs: calls of other threads would be refused, and it could stay so
        with patch.object(_symbolic_trace, _TRACES, False) if hasattr(_symbolic_trace, _TRACES) else nullcontext():
            return fx.Interpreter(module).run(*inputs)

    with _TRACING:
        made: fx.GraphModule = make_fx(functionalize(run, remove="mutations"))(*given)
    return made


_TRACING, _TRACES = RLock(), "_is_fx_tracing_flag"


def _writes(node: fx.Node) -> bool:
    return bool(getattr(node.target, "_schema", None) and node.target._schema.is_mutable)


# Regions


class _Regions:
    """The regions of a traced segment. `chosen`: those that run here, by level: a region waits for PyTorch's operators of lower levels,
    and these for regions of their own level and below."""

    def __init__(
        self, traced: fx.GraphModule, inputs: Sequence[fx.Node], parameters: Mapping[fx.Node, Any], accuracy: ModelAccuracy
    ) -> None:
        self.traced, self._accuracy = traced, accuracy
        self.places = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
        self.values = {place: parameters[node] for place, node in self.places.items() if node in parameters}
        found = lowered(traced.graph, self.values)
        self.constants, self.unknown = found.values, found.unknown
        self.native = {node for node in found.made if node.op == "call_function" and node not in found.unknown}
        self.given_back: list[NetworkLayer] = []
        self.results = next(iter(reversed(traced.graph.nodes))).args[0]
        self.chosen: dict[int, tuple[NetworkLayer, list[fx.Node], list[fx.Node]]] = {}
        self._choose()

    def _choose(self) -> None:
        kept = dict[frozenset[fx.Node], Any]()
        while True:
            self.levels = self._levels()
            self.chosen = {}
            lost = False
            for level in sorted({self.levels[node] for node in self.native}):
                nodes = frozenset(node for node in self.native if self.levels[node] == level)
                if nodes not in kept:
                    kept[nodes] = self._layer(level, nodes)
                found = kept[nodes]
                if found is None or not found[0].is_faster:
                    self.given_back += [] if found is None else [found[0]]
                    self.native -= nodes
                    lost = True
                    break
                self.chosen[level] = found
            if not lost:
                return

    def _levels(self) -> dict[fx.Node, int]:
        levels: dict[fx.Node, int] = {}
        for node in self.traced.graph.nodes:
            native = node in self.native
            before = [levels[one] + (native and one not in self.native) for one in node.all_input_nodes if one in levels]
            if node.op == "call_function" and node not in self.constants:
                levels[node] = max([int(native), *before])
        return levels

    def decisions(self) -> list[Decision]:
        """Of the networks, those given back, and other operators that are PyTorch's."""
        found = [decision for layer in (*(layer for layer, *_ in self.chosen.values()), *self.given_back) for decision in layer.decisions]
        return found + list(dict.fromkeys(Decision(module_name(node), "", "torch", reason) for node, reason in self.unknown.items()))

    def _layer(self, level: int, nodes: frozenset[fx.Node]) -> Any:
        """(the layer, its parameters and inputs, its outputs) of the operators of a level; None if nothing outside reads them."""
        outputs = [node for node in self.traced.graph.nodes if node in nodes and not is_view(node) and self._is_read_outside(node, level)]
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        wanted = self._needed(outputs, nodes)
        given = [node for node in self.traced.graph.nodes if node in wanted and not self._inside(node, nodes)]
        given.sort(key=lambda node: node not in self.values)
        count = sum(node in self.values for node in given)
        if not outputs or not count:
            return None
        for node in given:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = node.meta
        for node in self.traced.graph.nodes:
            if node in wanted and node not in copies:
                copies[node] = _copied(graph, node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        layer = NetworkLayer(fx.GraphModule(self.traced, graph), count, self._accuracy)
        layer.reads_inputs = all(self.places[node].op == "placeholder" for node in given[:count])
        layer.choose([self.values[node] for node in given[:count]])
        return layer, given, outputs

    def _inside(self, node: fx.Node, nodes: Collection[fx.Node]) -> bool:
        """Whether a region computes a value itself: its operators, constants, and views of what another region made."""
        return node.op != "placeholder" and (node in nodes or node in self.constants or (node in self.native and is_view(node)))

    def _needed(self, outputs: Iterable[fx.Node], nodes: Collection[fx.Node]) -> set[fx.Node]:
        found, open_ones = set[fx.Node](), [*outputs]
        while open_ones:
            node = open_ones.pop()
            if node not in found:
                found.add(node)
                open_ones += node.all_input_nodes if self._inside(node, nodes) else []
        return found

    def _is_read_outside(self, node: fx.Node, level: int) -> bool:
        """Whether an operator of PyTorch's, another region or the caller reads a value, or a view of it."""
        for user in node.users:
            if user.op == "output" or user not in self.native or self.levels[user] != level:
                return True
            if is_view(user) and self._is_read_outside(user, level):
                return True
        return False


# Insertion


def _copied(graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """A node in another graph, where values have other strides than in the trace if weights or operators make such."""
    made = graph.node_copy(node, value)
    if node.target is torch.ops.aten.view.default:
        made.target = torch.ops.aten.reshape.default
    elif node.target is torch.ops.aten._weight_norm_interface.default:
        made.target = _weight_norm
    return made


def _weight_norm(v: Any, g: Any, axis: int = 0) -> Any:
    """PyTorch's operator, which reads its operands as contiguous; in a trace they were."""
    return torch.ops.aten._weight_norm_interface.default(v.contiguous(), g.contiguous(), axis)


def _replace(module: fx.GraphModule, segment: Segment, regions: _Regions) -> None:
    """Replaces a segment by its networks and what stays PyTorch's."""
    graph, inside, traced = module.graph, {*segment.nodes}, regions.traced
    emitted: dict[fx.Node, fx.Node] = dict(regions.places)
    detaches = any(name_of_operator(node) == "detach" for node in segment.nodes)

    def value(node: fx.Node) -> fx.Node:
        """The node in the captured graph: of PyTorch's operators, constants and views inserted when something reads it."""
        if node not in emitted and node.op == "get_attr":
            name = f"pysim_{segment.nodes[0].name}{node.target}"
            module.register_buffer(name, getattr(traced, str(node.target)))
            emitted[node] = graph.get_attr(name)
        elif node not in emitted:
            for one in node.all_input_nodes:
                value(one)
            emitted[node] = _copied(graph, node, emitted.__getitem__)
            if node.target is torch.ops.aten.alias.default and detaches:  # which traces write so
                emitted[node].target = torch.ops.aten.detach.default
        return emitted[node]

    def insert(level: int) -> None:
        layer, given, outputs = regions.chosen[level]
        name = f"pysim_{segment.nodes[0].name}_{level}"
        module.add_module(name, layer)
        made = graph.call_module(name, tuple(value(one) for one in given))
        for at, one in enumerate(outputs):
            emitted[one] = made if len(outputs) == 1 else graph.call_function(operator.getitem, (made, at))
            emitted[one].meta["form"] = one.meta["form"]

    with graph.inserting_before(segment.nodes[-1].next):
        by_pytorch = [node for node in traced.graph.nodes if node in regions.levels and node not in regions.native]
        for level in range(max(regions.levels.values(), default=0) + 1):
            if level in regions.chosen:
                insert(level)
            for node in by_pytorch:
                if regions.levels[node] == level:
                    value(node)
        for node, result in zip(segment.outputs, regions.results, strict=True):
            node.replace_all_uses_with(value(result), lambda user: user not in inside)
    for node in reversed(segment.nodes):
        graph.erase_node(node)
