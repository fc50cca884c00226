# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FX graphs: each convolution and product of a traced model becomes one module (`FusedLayer`) with the operators fused into it.

Modules are first replaced by PyTorch's functions with the parameters as arguments. `torch_nodes` reads the result as a graph of
`pysim.models.graph`, and `pysim.models.fusion` fuses it. A fused layer is inserted where its convolution stood, because an operator between
that place and the activation might overwrite the layer's input. Modules with hooks, and unknown ones, stay as they are.
"""

import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.nn import functional

from pysim.frontends.torch_channels import without_permutes
from pysim.frontends.torch_nodes import ELEMENTWISE, NORM_ARGUMENTS, graph_of
from pysim.models.fusion import INPUT_OP, NORM, OVERWRITE, PARTS, RESIDUAL, RESIDUAL_INPUT, SCALE, InputOp, fuse
from pysim.models.graph import Node
from pysim.models.torch_chain import LayerChain, Link
from pysim.models.torch_layers import FusedLayer
from pysim.models.torch_norms import FactorLayer, NormLayer, RowNormLayer
from pysim.models.torch_pools import max_pool
from pysim.models.torch_precision import ModelAccuracy
from pysim.models.torch_state import count_training

_Arguments = dict[str, Any]
_Layer = TypeVar("_Layer", bound=FusedLayer | NormLayer | RowNormLayer)
_WEIGHTED_OPS = ("Conv", "Linear")


class Tracer(fx.Tracer):  # type: ignore[misc]  # PyTorch need not be here
    """Traces x += y as the in-place operator that it is on tensors; torch.fx traces x = x + y, which other names of x do not see."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Symbol(node, self)


class _Symbol(fx.Proxy):  # type: ignore[misc]  # PyTorch need not be here
    pass


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, other: x.tracer.create_proxy("call_function", function, (x, other), {})


for _written in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"):
    setattr(_Symbol, f"__{_written}__", _in_place(getattr(operator, _written)))


def rewrite(
    module: fx.GraphModule, accuracy: ModelAccuracy = "strict", in_cuda_graph: bool = False
) -> tuple[fx.GraphModule, list[FusedLayer]]:
    """The traced module, changed in place, and its fused layers."""
    _remove_dropout(module)
    _modules_to_functions(module)
    without_permutes(module, ELEMENTWISE)
    _views_to_reshapes(module)
    places = {node.name: node for node in module.graph.nodes}
    graph = fuse(graph_of(module.graph), _supports)
    layers = [_insert(module, node, places, _layer(node, places)) for node in graph.nodes if node.op in _WEIGHTED_OPS]
    for layer in layers:
        layer.accuracy, layer.in_cuda_graph = accuracy, in_cuda_graph
    for node in graph.nodes:
        if node.op == "BatchNormalization":
            _insert(module, node, places, NormLayer(node.attributes["epsilon"], node.attributes.get("activation")))
        elif node.op == "LayerNormalization":
            users = [user for user in graph.nodes if node.output in user.inputs]
            feeds_products = node.output not in graph.outputs and all(
                user.op in _WEIGHTED_OPS and user.inputs[0] == node.output and node.output not in user.inputs[1:] for user in users
            )
            _insert(module, node, places, RowNormLayer(feeds_products=feeds_products, **node.attributes))
    _join_chains(module)
    for node in module.graph.nodes:
        if node.op == "get_attr" and not node.users:  # other nodes without users may have side effects
            module.graph.erase_node(node)
    _shorten_names(module)
    module.graph.lint()
    module.recompile()
    return module, layers


def _supports(node: Node, epilogue: Any) -> bool:
    """What `FusedLayer` and `NormLayer` can compute; a residual only if it may be overwritten."""
    if epilogue == PARTS:
        return node.op == "Concat"
    if epilogue in (RESIDUAL, NORM, INPUT_OP):
        return epilogue != RESIDUAL and node.op == "Conv"
    if epilogue == SCALE:
        return node.op == "Linear"
    return node.op in _WEIGHTED_OPS or (epilogue != OVERWRITE and node.op == "BatchNormalization")


def count_trainings(module: fx.GraphModule) -> None:
    """Counts each call of a BatchNorm in training, which writes the running statistics and leaves their version counters as they are."""
    for node in list(module.graph.nodes):
        if node.target is functional.batch_norm:
            given = dict(zip(NORM_ARGUMENTS, node.args, strict=False)) | node.kwargs
            if given.get("training", False) is not False:
                with module.graph.inserting_after(node):
                    module.graph.call_function(count_training, (given.get("running_mean"), given.get("running_var")))
    module.recompile()


# Operators that return their input in inference


_DROPS = {nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout}
_DROPPING = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout}


def _remove_dropout(module: fx.GraphModule) -> None:
    """Removes dropout and stochastic depth, which would separate a layer from the addition behind it."""
    depth = getattr(sys.modules.get("torchvision.ops.stochastic_depth"), "stochastic_depth", None)
    for node in list(module.graph.nodes):
        if node.op == "call_module":
            called = module.get_submodule(node.target)
            drops = type(called) in _DROPS and not called.training and not _hooked(called)
        else:
            call = inspect.signature(node.target).bind(*node.args, **node.kwargs) if node.target in {*_DROPPING, depth} else None
            drops = call is not None and call.arguments.get("training", True) is False
        x = node.args[0] if node.args else node.kwargs.get("input")
        if drops and isinstance(x, fx.Node):
            node.replace_all_uses_with(x)
            module.graph.erase_node(node)


def _views_to_reshapes(module: fx.GraphModule) -> None:
    """Views become reshapes: here the viewed value may be channels last, and then a view of it raises."""
    for node in module.graph.nodes:
        shape = [*node.args[1:], *node.kwargs.values()]
        if node.op == "call_method" and node.target == "view" and not any(isinstance(one, torch.dtype) for one in shape):
            node.target = "reshape"


# Modules as functions


def _modules_to_functions(module: fx.GraphModule) -> None:
    """Replaces convolutions, products, norms and activations by functions of their parameters."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in (functional.max_pool2d, torch.max_pool2d):
            node.target = max_pool
        if node.op != "call_module":
            continue
        called = module.get_submodule(node.target)
        translate = _MODULES.get(type(called))
        if translate is None or _hooked(called):
            continue
        with module.graph.inserting_before(node):

            def parameter(name: str, of: Any = called, at: str = node.target) -> Any:
                return None if getattr(of, name) is None else module.graph.get_attr(f"{at}.{name}")

            made = translate(called, parameter)
            if made is None:
                continue
            function, arguments = made
            other = module.graph.call_function(function, (node.args[0] if node.args else node.kwargs["input"],), arguments)
        node.replace_all_uses_with(other)
        module.graph.erase_node(node)


def _hooked(module: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in hooks)


_Made = tuple[Any, _Arguments] | None
_Parameter = Callable[[str], Any]


def _conv(m: Any, parameter: _Parameter) -> _Made:
    if m.padding_mode != "zeros" or isinstance(m.padding, str):
        return None
    how = {"stride": m.stride, "padding": m.padding, "dilation": m.dilation, "groups": m.groups}
    return torch.conv2d, {"weight": parameter("weight"), "bias": parameter("bias"), **how}


def _linear(m: Any, parameter: _Parameter) -> _Made:
    return functional.linear, {"weight": parameter("weight"), "bias": parameter("bias")}


def _norm(m: Any, parameter: _Parameter) -> _Made:
    if m.training or m.running_mean is None:
        return None
    names = ("running_mean", "running_var", "weight", "bias")
    return functional.batch_norm, {name: parameter(name) for name in names} | {"training": False, "eps": m.eps}


def _layer_norm(m: Any, parameter: _Parameter) -> _Made:
    how = {"normalized_shape": m.normalized_shape, "eps": m.eps}
    return functional.layer_norm, {"weight": parameter("weight"), "bias": parameter("bias"), **how}


def _max_pool(m: Any, parameter: _Parameter) -> _Made:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    return max_pool, {name: getattr(m, name) for name in names}


_MODULES: dict[type, Callable[[Any, _Parameter], _Made]] = {
    nn.LayerNorm: _layer_norm,
    nn.MaxPool2d: _max_pool,
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm2d: _norm,
    nn.ReLU: lambda m, parameter: (functional.relu, {"inplace": m.inplace}),
    nn.ReLU6: lambda m, parameter: (functional.hardtanh, {"min_val": 0.0, "max_val": 6.0, "inplace": m.inplace}),
    nn.Hardtanh: lambda m, parameter: (functional.hardtanh, {"min_val": m.min_val, "max_val": m.max_val, "inplace": m.inplace}),
    nn.GELU: lambda m, parameter: (functional.gelu, {"approximate": m.approximate}),
    nn.SiLU: lambda m, parameter: (functional.silu, {"inplace": m.inplace}),
    nn.Hardswish: lambda m, parameter: (functional.hardswish, {"inplace": m.inplace}),
    nn.Sigmoid: lambda m, parameter: (torch.sigmoid, {}),
}

# Layers


def _layer(node: Node, places: dict[str, fx.Node]) -> FusedLayer:
    attributes = node.attributes
    label = next((str(one.target) for one in _operands(node, places)[1:2] if one is not None and one.op == "get_attr"), node.name)
    name = label.removesuffix(".weight")
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
    )


def _insert(module: fx.GraphModule, node: Node, places: dict[str, fx.Node], layer: _Layer) -> _Layer:
    """Inserts a layer where its convolution, product or norm stood; the users of its last node read it."""
    anchor, last = places[node.name], places[node.output]
    at, (x, *parameters) = f"pysim_{anchor.name}", _operands(node, places)
    owners, count = [_owner(module, one) for one in parameters], len(layer.owners)
    absorbed = node.attributes.get("input_op")
    if isinstance(layer, FusedLayer) and isinstance(layer.input_op, NormLayer):
        layer.input_op.owners = tuple(owners[RESIDUAL_INPUT:])
    elif not isinstance(layer, FusedLayer):
        owners[count:] = [None] * len(owners[count:])  # parts of a concatenation stay arguments, even parameters
    layer.owners = tuple(owners[:count] + [None] * (count - len(owners)))
    module.add_module(at, layer)
    with module.graph.inserting_before(anchor):
        made = module.graph.call_module(at, (x, *(None if owner else argument for argument, owner in zip(parameters, owners, strict=True))))
    last.replace_all_uses_with(made)
    for gone in (*reversed(node.absorbed), node.name, *reversed(absorbed.absorbed if absorbed else ())):
        module.graph.erase_node(places[gone])
    places[node.output] = made
    return layer


def _join_chains(module: fx.GraphModule) -> None:
    """Joins consecutive layers and norms to one module."""
    runs: list[list[fx.Node]] = [[]]
    for node in module.graph.nodes:
        if node.op in ("get_attr", "placeholder"):
            continue
        layer: Any = module.get_submodule(node.target) if node.op == "call_module" else None
        links = isinstance(layer, FusedLayer | NormLayer | RowNormLayer)
        if not links or any(one in runs[-1] for one in node.args[1 : 1 + len(layer.owners)]):
            runs.append([])
        if links:
            runs[-1].append(node)
    for run in filter(None, runs):
        _insert_chain(module, run)


def _link(layer: Any, numbers: Sequence[int | None]) -> Link:
    """The link of a layer whose arguments have these numbers."""
    x, parameters, others = numbers[0] or 0, tuple(numbers[1 : 1 + len(layer.owners)]), numbers[1 + len(layer.owners) :]
    parameters += (None,) * (len(layer.owners) - len(parameters))
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


def _shorten_names(module: fx.GraphModule) -> None:
    """Gives the remaining submodules names without dots: each dot costs a lookup in every call."""
    for node in module.graph.nodes:
        if node.op == "call_module" and "." in node.target:
            name = f"pysim_{node.name}"
            module.add_module(name, module.get_submodule(node.target))
            node.target = name


def _operands(node: Node, places: dict[str, fx.Node]) -> list[fx.Node | None]:
    return [places[name] if name else None for name in node.inputs]


def _owner(module: fx.GraphModule, operand: fx.Node | None) -> tuple[nn.Module, str] | None:
    """The owner of a parameter; None for values that are computed or arguments of the model."""
    if operand is None or operand.op != "get_attr":
        return None
    path, _, name = str(operand.target).rpartition(".")
    return module.get_submodule(path), name
