# SPDX-License-Identifier: Apache-2.0
"""Norms of groups of channels with what follows as one pass, where that is expected to be faster than the compiler's two.

    group_norm or instance_norm [-> + residual] [-> activation]   ->   pysim::group_norm

They are found in the captured graph, whose effects are known, and chosen after the layers are in it: then it is known what computes a
norm's input and what reads its result, and whether the compiler would have fused with these.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from pysim.machine.gpu import Gpu
from pysim.network.fusion import activation_of
from pysim.network.graph import Node
from pysim.torch import operators
from pysim.torch.capture.between import is_fused, is_static
from pysim.torch.capture.effects import Effects, is_pure, name_of_operator, written_by
from pysim.torch.capture.nodes import graph_of
from pysim.torch.layers.compiler_seconds import MARGIN
from pysim.torch.layers.group_norms import LAST, compiler_seconds, norm_of, own_seconds

_GROUPS = ("input", "num_groups", "weight", "bias", "eps", "cudnn_enabled")
_INSTANCES = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps", "cudnn_enabled")
_POOLS = ("max_pool2d", "avg_pool2d", "max_pool3d", "avg_pool3d")  # read a value several times
_SHOWN = ("contiguous",)  # before a layer, of a value that already lies so


class FoundNorm(NamedTuple):
    """A norm and the operators behind it that one pass computes, the last of which has its result."""

    norm: fx.Node
    behind: tuple[fx.Node, ...]
    x: fx.Node
    gamma: fx.Node | None
    beta: fx.Node | None
    residual: fx.Node | None
    groups: int
    epsilon: float
    activation: Any

    @property
    def last(self) -> fx.Node:
        return (self.norm, *self.behind)[-1]


def group_norms(graph: fx.Graph, effects: Effects) -> list[FoundNorm]:
    """Those that a kernel could compute, each with as much of what follows as it could."""
    known = {node.name: node for node in graph_of(graph, effects, compiled=True).nodes}
    order = {node: at for at, node in enumerate(graph.nodes)}
    found = []
    for node in graph.nodes:
        one = _read(node) if node not in effects.unsettled and effects.owns(node) else None
        if one is not None:
            found.append(_with_behind(one, known, order, effects))
    return found


def _read(node: fx.Node) -> FoundNorm | None:
    name = name_of_operator(node) if node.op == "call_function" else ""
    if name not in ("group_norm", "instance_norm"):
        return None
    given = dict(zip(_GROUPS if name == "group_norm" else _INSTANCES, node.args, strict=False)) | node.kwargs
    x, gamma, beta, epsilon = (given.get(one) for one in ("input", "weight", "bias", "eps"))
    examples: list[Any] = [one.meta.get("example_value") if isinstance(one, fx.Node) else None for one in (x, node)]
    example, result = examples
    if not (is_static(example) and is_static(result) and example.dim() in LAST and example.dtype is result.dtype and example.numel()):
        return None
    groups = given.get("num_groups") if name == "group_norm" else example.shape[1]
    of_images = given.get("running_mean") is None and given.get("running_var") is None and given.get("use_input_stats", True) is True
    epsilon = 1e-5 if epsilon is None else epsilon
    parameters: list[Any] = [one.meta.get("example_value") for one in (gamma, beta) if isinstance(one, fx.Node)]
    fits = all(one is None or isinstance(one, fx.Node) for one in (gamma, beta)) and len({one.dtype for one in parameters}) < 2
    if not (of_images and fits and isinstance(x, fx.Node) and isinstance(groups, int) and isinstance(epsilon, float)):
        return None
    if not all(is_static(one) and one.is_contiguous() for one in parameters) or groups < 1 or example.shape[1] % groups:
        return None
    return FoundNorm(node, (), x, gamma, beta, None, groups, epsilon, None)


def _with_behind(one: FoundNorm, known: dict[str, Node], order: dict[fx.Node, int], effects: Effects) -> FoundNorm:
    """With an addition and an activation behind it, if nothing else reads what lies between. The kernel reads the norm's input where the
    last of them stands, so until there nothing may write, and no layer may run, whose kernel may take the memory of what it reads."""
    while len(one.last.users) == 1 and one.activation is None:
        (user,) = one.last.users
        node, others = known.get(user.name), [at for at in user.all_input_nodes if at is not one.last]
        between = [at for at in order if order[one.norm] < order[at] < order[user] and at not in one.behind]
        quiet = all(is_pure(at) and (is_fused(at) or at.op in ("placeholder", "get_attr")) for at in between)
        alone = all(at is one.last or (effects.owns(at) and len(at.users) == 1) for at in written_by(user))
        if node is None or user in effects.unsettled or not (quiet and alone and _alike(user, one.norm)):
            return one
        if (activation := activation_of(node)) is not None and not others:
            one = one._replace(behind=(*one.behind, user), activation=activation)
        elif node.op == "Add" and one.residual is None and len(others) == 1 and _alike(others[0], one.norm):
            one = one._replace(behind=(*one.behind, user), residual=others[0])
        else:
            return one
    return one


def _alike(a: fx.Node, b: fx.Node) -> bool:
    examples: list[Any] = [one.meta.get("example_value") for one in (a, b)]
    first, second = examples
    return is_static(first) and is_static(second) and first.shape == second.shape and first.dtype is second.dtype


def insert_group_norms(module: fx.GraphModule, found: Sequence[FoundNorm], ours: Collection[fx.Node], on: Gpu) -> list[fx.Node]:
    """Puts the operator in the place of those that are expected to win. `ours`: the results of pysim's layers in the graph. Returns the
    operator's results."""
    graph, made = module.graph, list[fx.Node]()
    results = {*ours}
    for one in found:
        left = {*graph.nodes}
        if one.norm not in left:
            continue
        if not left.issuperset(one.behind):  # a layer adds the norm's result, or has the activation
            one = one._replace(behind=(), residual=None, activation=None)
        x: Any = one.norm.args[0] if one.norm.args else one.norm.kwargs["input"]
        residual = next((node for user in one.behind for node in user.all_input_nodes if node not in (one.norm, *one.behind)), None)
        if not _wins(one, x, results, on):
            continue
        form = LAST[x.meta["example_value"].dim()]
        with graph.inserting_before(one.last):
            read = [None if node is None else graph.call_method("contiguous", (node,), {"memory_format": form}) for node in (x, residual)]
            how = one.activation if isinstance(one.activation, str | None) else list(one.activation)
            y = graph.call_function(
                operators.group_norm, (*read, one.gamma, one.beta, one.groups, one.epsilon, operators.text_of_activation(how))
            )
        y.meta["example_value"] = one.last.meta["example_value"]
        one.last.replace_all_uses_with(y)
        for gone in (*reversed(one.behind), one.norm):
            graph.erase_node(gone)
        results.add(y)
        made.append(y)
    return made


def _wins(one: FoundNorm, x: fx.Node, ours: Collection[fx.Node], on: Gpu) -> bool:
    example, producer = x.meta["example_value"], x
    while producer not in ours and name_of_operator(producer) in _SHOWN:
        producer = producer.all_input_nodes[0]
    if producer not in ours and not example.is_contiguous(memory_format=LAST[example.dim()]):
        return False
    parameters = [node.meta["example_value"].dtype for node in (one.gamma, one.beta) if node is not None]
    if not norm_of(example, parameters[0] if parameters else None, one.groups, one.epsilon, one.activation).supported:
        return False
    made_apart = producer not in ours and is_fused(producer)
    readers = [*_readers(one.last)]
    pooled = any(name_of_operator(node) in _POOLS for node in readers)
    fuses_on = len(readers) == 1 and not pooled and all(_computes(node) for node in readers)
    adds = one.residual is not None
    ours_seconds, theirs = own_seconds(example, adds, made_apart, on), compiler_seconds(example, one.groups, adds, fuses_on, on)
    return ours_seconds * (1 + MARGIN) < theirs


def _readers(node: fx.Node) -> Any:
    for user in node.users:
        yield from _readers(user) if name_of_operator(user) in _SHOWN else (user,)


def _computes(node: fx.Node) -> bool:
    """Whether the compiler makes the kernel of what reads a value."""
    return is_fused(node) and not isinstance(node.target, torch._ops.OpOverload)
