# SPDX-License-Identifier: Apache-2.0
"""A rewritten graph on a GPU (`capture.rewriting`) as a JSON document: its operators by name, its layers with the plans that were chosen.

Values that JSON lacks are objects of one field, which says what they are: {"node": "relu"}, {"dtype": "float16"}, {"tuple": [...]}. An
operator is a function of PyTorch's on tensors, a method of its tensors, an operator of Python's on values, or one of pysim's; nothing else
that a document names is called. Parameters stay inputs of the graph, so a document holds no weights: what the kernels read of them is
computed from the model's own, and follows them.

Worked line: ["call_function", "add_3", "operator add", [{"node": "chain"}, {"node": "x"}], {}].
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from pysim import planner
from pysim.calibration import host
from pysim.problem.text import parse
from pysim.torch.capture.channels import linear_over_channels, norm_over_channels
from pysim.torch.capture.rewriting import Rewritten
from pysim.torch.capture.strides import in_order, with_strides
from pysim.torch.layers.concatenations import concatenate
from pysim.torch.layers.conv_forms import Geometry
from pysim.torch.layers.fused_layer import Choice, Decision, FusedLayer
from pysim.torch.layers.layer_chain import LayerChain, Link
from pysim.torch.layers.max_pools import max_pool, max_pool3d
from pysim.torch.layers.norm_layers import FactorLayer, NormLayer, RowNormLayer
from pysim.torch.parameters import count_writes
from pysim.torch.precision import Settings

_OWN_OPERATORS = linear_over_channels, norm_over_channels, in_order, with_strides, max_pool, max_pool3d, concatenate, count_writes
_OWN = {one.__name__: one for one in _OWN_OPERATORS}
_OPERATORS = {
    "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "iadd", "iand", "imul", "invert", "ior", "isub", "itruediv", "le", "lt",
    "matmul", "mod", "mul", "ne", "neg", "or_", "pos", "pow", "setitem", "sub", "truediv", "xor",
}  # fmt: skip
_NO_OPERATORS = {"from_file", "frombuffer"}  # functions of torch's that are none of tensors alone
_FROM_FUNCTIONAL = ("torch.nn.functional", "torch._C._nn", "torch._jit_internal")


class UntoldError(Exception):
    """Why a document cannot hold a graph, or is none of one."""


def _of_torch(name: str) -> Any:
    native = hasattr(torch._C._VariableFunctions, name) or name in torch.functional.__all__
    return getattr(torch, name, None) if native and name not in _NO_OPERATORS else None


def _of_functional(name: str) -> Any:
    found = getattr(functional, name, None)
    return found if getattr(found, "__module__", None) in _FROM_FUNCTIONAL or _is_builtin(found) else None


def _is_builtin(found: Any) -> bool:
    return type(found) is type(torch.conv2d) and not isinstance(getattr(found, "__self__", None), ModuleType)


_PLACES: dict[str, Callable[[str], Any]] = {
    "torch": _of_torch,
    "functional": _of_functional,
    "nn": lambda name: getattr(torch._C._nn, name, None),
    "operator": lambda name: getattr(operator, name) if name in _OPERATORS else None,
    "pysim": _OWN.get,
}


def _function_name(target: Any) -> str:
    name = getattr(target, "__name__", "")
    for place, find in _PLACES.items():
        if name and not name.startswith("_") and find(name) is target:
            return f"{place} {name}"
    raise UntoldError(f"it calls {getattr(target, '__module__', '')}.{name or target}, which is no operator on tensors")


def _function(told: str) -> Any:
    place, _, name = told.partition(" ")
    found = None if name.startswith("_") or place not in _PLACES else _PLACES[place](name)
    if not callable(found):
        raise UntoldError(f"it calls {told}, which is no operator on tensors")
    return found


def _method(name: str) -> str:
    if name.startswith("_") or not callable(getattr(torch.Tensor, name, None)):
        raise UntoldError(f"it calls a method {name}, which tensors lack")
    return name


# Values

_KINDS = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}


def kept(value: Any) -> Any:
    """A value for the document."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, of in _KINDS.items():
        if isinstance(value, of):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, Settings):
        return {"settings": [kept(one) for one in value]}
    if isinstance(value, tuple):  # torch.Size, too
        return {"tuple": [kept(one) for one in value]}
    if isinstance(value, list):
        return [kept(one) for one in value]
    if isinstance(value, slice):
        return {"slice": [kept(one) for one in (value.start, value.stop, value.step)]}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: kept(one) for key, one in value.items()}}
    if value is Ellipsis:
        return {"ellipsis": None}
    raise UntoldError(f"an operator is given a {type(value).__name__}")


def value_of(told: Any, nodes: Mapping[str, fx.Node]) -> Any:
    if isinstance(told, list):
        return [value_of(one, nodes) for one in told]
    if not isinstance(told, dict):
        return told
    ((kind, one),) = told.items()
    if kind in _KINDS and isinstance(found := getattr(torch, one, None), _KINDS[kind]):
        return found
    make: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "node": nodes.__getitem__,
        "device": torch.device,
        "settings": lambda items: Settings(*(value_of(item, nodes) for item in items)),
        "tuple": lambda items: tuple(value_of(item, nodes) for item in items),
        "slice": lambda ends: slice(*(value_of(end, nodes) for end in ends)),
        "dict": lambda items: {key: value_of(item, nodes) for key, item in items.items()},
        "ellipsis": lambda _: Ellipsis,
    }
    return make[kind](one)


# Graphs


def told(program: Rewritten) -> dict[str, Any]:
    """The document of a graph whose layers have run. UntoldError says what it cannot hold."""
    layers, modules, nodes = list[Any](), dict[str, Any](), list[Any]()
    for node in program.module.graph.nodes:
        target: Any = None
        if node.op == "call_module":
            target = str(node.target)
            modules[target] = _chain_told(program.module.get_submodule(target), layers)
        elif node.op == "call_function":
            target = _function_name(node.target)
        elif node.op == "call_method":
            target = _method(str(node.target))
        elif node.op == "get_attr":
            raise UntoldError("it has a tensor that is neither an argument nor a parameter or buffer of the model")
        nodes.append([node.op, node.name, target, kept([*node.args]), kept({**node.kwargs})])
    own = [next((at for at, layer in enumerate(layers) if layer is one), -1) for one in program.layers]
    return {
        "nodes": nodes,
        "layers": [_layer_told(one) for one in layers],
        "modules": modules,
        "own": own,
        "parameters": program.parameters,
        "means": program.means,
        "repeatable": program.repeatable,
    }


def program_of(document: Mapping[str, Any]) -> Rewritten:
    """The graph of a document. UntoldError, KeyError, TypeError or ValueError for what is none."""
    layers, root = [_layer(one) for one in document["layers"]], torch.nn.Module()
    for name, chain in document["modules"].items():
        root.add_module(name, _chain(chain, layers))
    graph, nodes = fx.Graph(), dict[str, fx.Node]()
    for op, name, target, args, kwargs in document["nodes"]:
        given, named = tuple(value_of(args, nodes)), value_of(kwargs, nodes)
        if op == "output":
            graph.output(given[0])
        elif op == "placeholder":
            nodes[name] = graph.placeholder(name)
        elif op == "call_module":
            nodes[name] = graph.create_node(op, target, given, named, name)
        elif op in ("call_function", "call_method"):
            nodes[name] = graph.create_node(op, _function(target) if op == "call_function" else _method(target), given, named, name)
        else:
            raise UntoldError(f"it has a node that is a {op}")
    graph.lint()
    own = [layers[at] for at in document["own"]]
    return Rewritten(fx.GraphModule(root, graph), own, document["parameters"], document["means"], document["repeatable"])


def _chain_told(chain: Any, layers: list[Any]) -> list[Any]:
    if not isinstance(chain, LayerChain):
        raise UntoldError(f"it calls a module, a {type(chain).__name__}")
    links = []
    for link in chain.links:
        links.append([len(layers), link.x, link.parameters, link.residual, link.factor, link.others])
        layers.append(link.layer)
    return [links, chain.input_count, chain.outputs]


def _chain(document: Sequence[Any], layers: Sequence[Any]) -> LayerChain:
    links, count, outputs = document
    made = [Link(layers[at], x, tuple(given), residual, factor, tuple(others)) for at, x, given, residual, factor, others in links]
    return LayerChain(made, count, outputs)


# Layers


def _layer_told(layer: Any) -> dict[str, Any]:
    if isinstance(layer, FusedLayer):
        return {
            "kind": "layer",
            "made": kept([layer.name, layer.kind, tuple(layer.geometry), layer.activation, layer.epsilon, "add" in layer.replaced]),
            "input_op": None if layer.input_op is None else _layer_told(layer.input_op),
            "flags": [layer.scaled, layer.over_channels, layer.times],
            "how": [layer.accuracy, layer.in_cuda_graph, layer.derived.watched],
            "choices": [_choice_told(*one) for one in layer.choices.items()],
        }
    if isinstance(layer, NormLayer):
        return {"kind": "norm", "made": kept([layer.epsilon, layer.activation]), "how": [layer.never_pytorch, layer.derived.watched]}
    if isinstance(layer, RowNormLayer):
        made = [layer.epsilon, layer.channels, layer.over_channels, layer.feeds_products]
        return {"kind": "row norm", "made": kept(made), "how": [layer.never_pytorch, layer.derived.watched]}
    return {"kind": "factor"}


def _layer(document: Mapping[str, Any]) -> Any:
    kind = document["kind"]
    if kind == "factor":
        return FactorLayer()
    made = value_of(document["made"], {})
    if kind in ("norm", "row norm"):
        norm = NormLayer(*made) if kind == "norm" else RowNormLayer(*made)
        norm.never_pytorch, norm.derived.watched = document["how"]
        return norm
    name, kind, geometry, activation, epsilon, adds = made
    input_op = None if document["input_op"] is None else _layer(document["input_op"])
    layer = FusedLayer(name, kind, Geometry(*geometry), activation, epsilon, adds, input_op, *document["flags"])
    layer.accuracy, layer.in_cuda_graph, layer.derived.watched = document["how"]
    for one in document["choices"]:
        layer.choices.put(*_choice(one))
    return layer


def _choice_told(key: Any, choice: Choice) -> list[Any]:
    plan = choice.plan
    if plan is not None and parse(plan.workload.text) != plan.workload:
        raise UntoldError(f"its layer {choice.decision.layer} is a problem that is more than its text says")
    named = None if plan is None else [plan.workload.text, plan.layout, plan.name]
    return [kept(key), [*choice.decision], named, choice.uses_prologue]


def _choice(document: Sequence[Any]) -> tuple[Any, Choice]:
    key, decision, named, *how = document
    plan = None
    if named is not None:
        problem, layout, name = named
        plan = planner.plan(problem, host.gpu_here(), name=name, layout=layout)
    return value_of(key, {}), Choice(Decision(*decision), plan, *how)
