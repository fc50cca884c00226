# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FX graphs: each convolution and product of a captured model becomes one module (`FusedLayer`) with the operators fused into it.

Graphs are those of torch.compile: parameters and buffers are inputs, writes to them and random numbers are operators, and modules are
functions of their parameters. `torch_nodes` reads such a graph as one of `pysim.network.graph`, and `pysim.network.fusion` fuses it. A
fused layer is inserted where its convolution stood, because an operator between that place and the activation might overwrite the layer's
input (`torch_effects`).
"""

import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import fx
from torch.nn import functional

from pysim.network.fusion import INPUT_OP, NORM, OVERWRITE, PARTS, RESIDUAL, RESIDUAL_INPUT, SCALE, TIMES, InputOp, fuse
from pysim.network.graph import Node
from pysim.torch.capture.channels import without_permutes
from pysim.torch.capture.effects import Effects, effects_of
from pysim.torch.capture.forms import module_name
from pysim.torch.capture.nodes import ELEMENTWISE, NORM_ARGUMENTS, WEIGHTED_OPS, graph_of, joined_channels
from pysim.torch.capture.rewrites.attention_masks import with_contiguous_rows
from pysim.torch.capture.rewrites.known_masks import without_known_masks
from pysim.torch.capture.strides import restore_strides
from pysim.torch.layers.concatenations import concatenate
from pysim.torch.layers.fused_layer import FusedLayer
from pysim.torch.layers.layer_chain import LayerChain, Link
from pysim.torch.layers.max_pools import max_pool, max_pool3d
from pysim.torch.layers.norm_layers import FactorLayer, NormLayer, RowNormLayer
from pysim.torch.parameters import count_writes
from pysim.torch.precision import ModelAccuracy

_Layer = TypeVar("_Layer", bound=FusedLayer | NormLayer | RowNormLayer)


class Rewritten(NamedTuple):
    """A captured graph, changed in place; its layers; the positions of the inputs that are their parameters, and of those among them that
    are running means. `repeatable`: a call may be repeated without a trace, and its results are its own: it writes to no input, draws no
    numbers and returns no input's memory."""

    module: fx.GraphModule
    layers: list[FusedLayer]
    parameters: list[int]
    means: list[int]
    repeatable: bool

    @property
    def call(self) -> Callable[..., Any]:
        _ = self.module.code  # compiles it now: the forward of a module that is compiled when it first runs stays a detour in each call
        forward: Callable[..., Any] = self.module.forward
        return forward


def rewrite(
    module: fx.GraphModule,
    accuracy: ModelAccuracy = "strict",
    in_cuda_graph: bool = False,
) -> Rewritten:
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    remove_idle(module)
    before = effects_of(graph)
    repeatable = not (before.writes_inputs or before.draws_numbers or before.returns_inputs(returned(graph)))
    returns_views = before.share_memory(returned(graph))
    without_known_masks(graph, before)
    with_contiguous_rows(graph, before)
    _replace_pools(module)
    without_permutes(module, ELEMENTWISE)
    if not before.needs_strides:
        views_to_reshapes(module)
    effects = effects_of(graph)
    layers, made = _insert_layers(module, effects)
    _replace_concatenations(module)
    note_writes(module, effects)
    for layer in layers:
        layer.accuracy, layer.in_cuda_graph = accuracy, in_cuda_graph
    read = dict.fromkeys(one for node in made for one in _parameters(node, module))
    parameters = [at for at, one in enumerate(inputs) if one in read]
    means = [at for at in parameters if "running_mean" in inputs[at].name]
    for node in made:
        watched = not before.writes_inputs and all(one in inputs for one in _parameters(node, module))
        module.get_submodule(str(node.target)).derived.watched = watched
    if before.needs_strides:
        restore_strides(module, made)
    else:
        restore_strides(module, [one for one in returned(graph) if one.op != "placeholder"], only_results=not returns_views)
    _join_chains(module)
    graph.lint()
    module.recompile()
    return Rewritten(module, layers, parameters, means, repeatable)


def returned(graph: fx.Graph) -> list[fx.Node]:
    return next(node for node in reversed(graph.nodes) if node.op == "output").all_input_nodes


def _insert_layers(module: fx.GraphModule, effects: Effects) -> tuple[list[FusedLayer], list[fx.Node]]:
    """The layers of weights, and the nodes of all layers."""
    places = {node.name: node for node in module.graph.nodes}
    graph = fuse(graph_of(module.graph, effects), fuses_alone)
    nodes = [node for node in graph.nodes if node.op in WEIGHTED_OPS]
    layers = [layer_of(node, places) for node in nodes]
    made = [_insert(module, node, places, layer) for node, layer in zip(nodes, layers, strict=True)]
    for node in graph.nodes:
        if node.op == "BatchNormalization":
            made.append(_insert(module, node, places, NormLayer(node.attributes["epsilon"], node.attributes.get("activation"))))
        elif node.op == "LayerNormalization":
            users = [user for user in graph.nodes if node.output in user.inputs]
            feeds_products = node.output not in graph.outputs and all(
                user.op in WEIGHTED_OPS and user.inputs[0] == node.output and node.output not in user.inputs[1:] for user in users
            )
            made.append(_insert(module, node, places, RowNormLayer(feeds_products=feeds_products, **node.attributes)))
    return layers, made


def fuses_alone(node: Node, epilogue: Any) -> bool:
    """What `FusedLayer` and `NormLayer` can compute; a residual only if it may be overwritten."""
    if epilogue == PARTS:
        return node.op == "Concat"
    if epilogue in (RESIDUAL, NORM, INPUT_OP):
        return epilogue != RESIDUAL and node.op == "Conv"
    if epilogue == SCALE:
        return node.op == "Linear"
    if epilogue == TIMES:
        return node.attributes["geometry"].added is None
    return node.op in WEIGHTED_OPS or (epilogue != OVERWRITE and node.op == "BatchNormalization")


def count_trainings(module: fx.GraphModule) -> None:
    """Counts each call of a BatchNorm in training, which writes the running statistics and leaves their version counters as they are."""
    for node in list(module.graph.nodes):
        if node.target is functional.batch_norm:
            given = dict(zip(NORM_ARGUMENTS, node.args, strict=False)) | node.kwargs
            statistics = tuple(one for one in (given.get("running_mean"), given.get("running_var")) if one is not None)
            if statistics and given.get("training", False) is not False:
                with module.graph.inserting_after(node):
                    module.graph.call_function(count_writes, statistics)
    module.recompile()


def note_writes(module: fx.GraphModule, effects: Effects) -> None:
    """Counts the graph's own writes to its inputs, among them those through `.data` that leave version counters as they are."""
    for node, inputs in effects.writers.items():
        with module.graph.inserting_after(node):
            module.graph.call_function(count_writes, tuple(inputs))


# Operators that return their input in inference


_DROPPING = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout}


def remove_idle(module: fx.GraphModule) -> None:
    """Removes dropout and stochastic depth, which would separate a layer from the addition behind it, and what tells PyTorch that operators
    of torchvision are used."""
    for node in module.graph.find_nodes(op="call_function", target=torch._C._log_api_usage_once):
        module.graph.erase_node(node)
    depth = getattr(sys.modules.get("torchvision.ops.stochastic_depth"), "stochastic_depth", None)
    for node in list(module.graph.nodes):
        call = inspect.signature(node.target).bind(*node.args, **node.kwargs) if node.target in {*_DROPPING, depth} else None
        drops = call is not None and call.arguments.get("training", True) is False
        x = node.args[0] if node.args else node.kwargs.get("input")
        if drops and isinstance(x, fx.Node):
            node.replace_all_uses_with(x)
            module.graph.erase_node(node)


def views_to_reshapes(module: fx.GraphModule) -> None:
    """Views become reshapes: here the viewed value may be channels last, and then a view of it raises."""
    for node in module.graph.nodes:
        shape = [*node.args[1:], *node.kwargs.values()]
        if node.op == "call_method" and node.target == "view" and not any(isinstance(one, torch.dtype) for one in shape):
            node.target = "reshape"


def _replace_pools(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in (functional.max_pool2d, torch.max_pool2d):
            node.target = max_pool
        elif node.op == "call_function" and node.target in (functional.max_pool3d, torch.max_pool3d):
            node.target = max_pool3d


def _replace_concatenations(module: fx.GraphModule) -> None:
    """Those that no norm reads in parts."""
    for node in module.graph.nodes:
        if joined_channels(node) is not None:
            node.target = concatenate


# Layers


def layer_of(node: Node, places: dict[str, fx.Node]) -> FusedLayer:
    attributes = node.attributes
    name = module_name(places[node.name])
    has_residual, input_op = any(node.inputs[RESIDUAL_INPUT : RESIDUAL_INPUT + 1]), None
    if isinstance(absorbed := attributes.get("input_op"), InputOp):
        input_op = FactorLayer() if absorbed.epsilon is None else NormLayer(absorbed.epsilon, absorbed.activation)
    return FusedLayer(
        name,
        node.op,
        attributes["geometry"],
        attributes.get("activation"),
        attributes.get("epsilon"),
        has_residual,
        input_op,
        scaled="scaled" in attributes,
        over_channels="over_channels" in attributes,
        times=attributes.get("times", 1.0),
    )


def _insert(module: fx.GraphModule, node: Node, places: dict[str, fx.Node], layer: _Layer) -> fx.Node:
    """Inserts a layer where its convolution, product or norm stood; the users of its last node read it."""
    anchor, last = places[node.name], places[node.output]
    name, arguments = f"pysim_{anchor.name}", _operands(node, places)
    absorbed = node.attributes.get("input_op")
    module.add_module(name, layer)
    with module.graph.inserting_before(anchor):
        made = module.graph.call_module(name, tuple(arguments))
    made.meta["example_value"] = last.meta.get("example_value")
    last.replace_all_uses_with(made)
    for gone in (*reversed(node.absorbed), node.name, *reversed(absorbed.absorbed if absorbed else ())):
        module.graph.erase_node(places[gone])
    places[node.output] = made
    return made


def _parameters(node: fx.Node, module: fx.GraphModule) -> list[fx.Node]:
    """The arguments of a layer from which it may keep something: its own parameters and those of a norm on its input."""
    layer = module.get_submodule(str(node.target))
    kept = [*node.args[1 : 1 + layer.parameter_count]]
    if isinstance(layer, FusedLayer) and isinstance(layer.input_op, NormLayer):
        kept += node.args[1 + RESIDUAL_INPUT :]
    return [one for one in kept if isinstance(one, fx.Node)]


def _join_chains(module: fx.GraphModule) -> None:
    """Joins consecutive layers and norms to one module."""
    runs: list[list[fx.Node]] = [[]]
    for node in module.graph.nodes:
        if node.op in ("get_attr", "placeholder"):
            continue
        layer: Any = module.get_submodule(node.target) if node.op == "call_module" else None
        links = isinstance(layer, FusedLayer | NormLayer | RowNormLayer)
        if not links or any(one in runs[-1] for one in _parameters(node, module)):
            runs.append([])
        if links:
            runs[-1].append(node)
    for run in filter(None, runs):
        _insert_chain(module, run)


def _link(layer: Any, numbers: Sequence[int | None]) -> Link:
    """The link of a layer whose arguments have these numbers."""
    x, parameters, others = numbers[0] or 0, tuple(numbers[1 : 1 + layer.parameter_count]), numbers[1 + layer.parameter_count :]
    parameters += (None,) * (layer.parameter_count - len(parameters))
    if not isinstance(layer, FusedLayer):
        return Link(layer, x, parameters, others=tuple(one for one in others if one is not None))
    residual, *of_input_op = others or [None]
    norm, factor = ((), of_input_op[0]) if isinstance(layer.input_op, FactorLayer) else (of_input_op, None)
    return Link(layer, x, (*parameters, *norm), residual, factor)


def _insert_chain(module: fx.GraphModule, run: list[fx.Node]) -> None:
    """Replaces these layers by a chain, where the last one stood."""
    given = list(dict.fromkeys(one for node in run for one in node.all_input_nodes if one not in run))
    numbers: dict[Any, int | None] = {one: at for at, one in enumerate((*given, *run))} | {None: None}
    links = [_link(module.get_submodule(node.target), [numbers[one] for one in node.args]) for node in run]
    read = [node for node in run if any(user not in run for user in node.users)]
    at = f"{run[0].target}_chain"
    module.add_module(at, LayerChain(links, len(given), [numbers[node] or 0 for node in read]))
    with module.graph.inserting_after(run[-1]):
        made = module.graph.call_module(at, tuple(given))
    with module.graph.inserting_after(made):
        for number, node in enumerate(read):
            result = made if len(read) == 1 else module.graph.call_function(operator.getitem, (made, number))
            node.replace_all_uses_with(result, lambda user: user not in run)
    for node in reversed(run):
        module.graph.erase_node(node)
        module.delete_submodule(node.target)


def _operands(node: Node, places: dict[str, fx.Node]) -> list[fx.Node | None]:
    return [places[name] if name else None for name in node.inputs]
