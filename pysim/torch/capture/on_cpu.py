# SPDX-License-Identifier: Apache-2.0
"""A captured graph all of whose inputs lie on the CPU: what it computes from parameters alone is folded, and regions of it become networks.

Networks are planned for known sizes. A graph in which sizes differ between calls becomes one for each of the first LIMIT kinds of inputs;
other kinds run by PyTorch's operators, or under accuracy reproducible take the place of the oldest.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from pysim.torch.capture.effects import effects_of
from pysim.torch.capture.folding import fold, foldable
from pysim.torch.capture.forms import ABSENT, Form, known_in, note_forms
from pysim.torch.capture.regions import Networks, insert_networks
from pysim.torch.capture.rewriting import note_writes, remove_idle
from pysim.torch.precision import ModelAccuracy
from pysim.torch.whole import check_networks

LIMIT = 8


class RewrittenOnCpu(NamedTuple):
    """What runs the graph; what became of its operators so far; the positions of the inputs from which something is kept."""

    call: Callable[..., Any]
    found: Networks
    parameters: list[int]


def rewrite_on_cpu(module: fx.GraphModule, given: Sequence[Any], same: Sequence[int], accuracy: ModelAccuracy) -> RewrittenOnCpu:
    """`given`: the inputs of the captured call. `same`: the positions of those that are parameters and buffers of the model."""
    graph, found = module.graph, Networks([], [])
    inputs = graph.find_nodes(op="placeholder")
    remove_idle(module)
    effects = effects_of(graph)
    note_forms(graph)
    kept = [at for at in same if inputs[at] not in effects.written]
    folded = fold(module, foldable(graph, effects, [inputs[at] for at in same]))
    note_writes(module, effects)
    watched = not effects.writes_inputs
    if folded is not None:
        module.get_submodule(str(folded.target)).derived.watched = watched

    def specialized(copy: fx.GraphModule, values: Sequence[Any]) -> Callable[..., Any]:
        places = copy.graph.find_nodes(op="placeholder")
        made = insert_networks(copy, effects_of(copy.graph), _tensors(copy, {places[at]: values[at] for at in kept}), accuracy)
        for layer in made.layers:
            layer.derived.watched = watched and layer.reads_inputs
        if accuracy == "reproducible":
            check_networks(copy, made.decisions)
            found.layers.clear()  # those of a kind that is replaced would stay in memory
        found.layers.extend(made.layers)
        found.decisions.extend(made.decisions)
        for one in made.decisions:
            one.log()
        copy.graph.lint()
        copy.recompile()
        _ = copy.code  # compiles it now: the forward of a module that is compiled when it first runs stays a detour in each call
        return copy.forward

    if all(_is_settled(node.meta["form"]) for node in inputs):
        return RewrittenOnCpu(specialized(module, given), found, kept)
    module.recompile()
    variable = [at for at in range(len(inputs)) if at not in same]
    return RewrittenOnCpu(ByShape(module, variable, specialized, accuracy == "reproducible"), found, kept)


def _is_settled(form: Any) -> bool:
    return form in (None, ABSENT) or type(form) is int or (isinstance(form, Form) and form.is_known)


def _tensors(module: fx.GraphModule, same: dict[fx.Node, Any]) -> dict[fx.Node, Any]:
    """The tensors of the nodes that are the same in each call, those of folded values included."""
    found = dict(same)
    for node in module.graph.find_nodes(op="call_module"):
        values = module.get_submodule(str(node.target))(*(same[one] for one in node.args))
        found |= {user: values[user.args[1]] for user in node.users}
    return found


class ByShape:
    """A graph, rewritten for each kind of inputs. `variable`: the positions of the inputs that are no parameters. `whole`: PyTorch runs
    no kind."""

    def __init__(self, module: fx.GraphModule, variable: Sequence[int], specialized: Callable[..., Any], whole: bool) -> None:
        self._module, self._variable, self._specialized, self._whole = module, variable, specialized, whole
        self._forms = [node.meta["form"] for node in module.graph.find_nodes(op="placeholder")]
        self._calls: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = tuple((one.shape, one.stride()) if isinstance(one, torch.Tensor) else one for one in map(inputs.__getitem__, self._variable))
        call = self._calls.get(key)
        if call is None:
            if self._whole and len(self._calls) >= LIMIT:
                del self._calls[next(iter(self._calls))]
            call = self._module.forward if len(self._calls) >= LIMIT else self._specialized(self._known(inputs), inputs)
            if len(self._calls) < LIMIT:
                self._calls[key] = call
        return call(*inputs)

    def _known(self, inputs: Sequence[Any]) -> fx.GraphModule:
        """A copy in which all sizes are those of these inputs."""
        sizes = dict[Any, int]()
        for form, one in zip(self._forms, inputs, strict=True):
            numbers = (*form.shape, *form.stride) if isinstance(form, Form) else (form,)
            told = (*one.shape, *one.stride()) if isinstance(form, Form) else (one,)
            sizes |= {number: size for number, size in zip(numbers, told, strict=True) if getattr(number, "is_Symbol", False)}
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        graph.output(graph.graph_copy(self._module.graph, copies))
        for node, copy in copies.items():
            copy.meta["form"] = known_in(node.meta.get("form"), sizes)
        known = {node: number for node in graph.nodes if type(number := node.meta.get("form")) is int}
        for node in reversed(graph.nodes):
            node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: known.get(one, one))
            if node in known and node.op != "placeholder":
                graph.erase_node(node)
        return fx.GraphModule(self._module, graph)
